"""Gathers with the protocol `bounded-energy`, one after another, in virtual time."""

import numpy as np

from testbed.transport import Leg, preset
from testbed.transport.core import worth
from testbed.transport.core.events import TransferDone
from testbed.transport.policies.order import ORDERS
from tests.transport.two_parties import Two, ended
from tests.transport.virtual import random_payload

CHUNKS, FLOOR, SHARE, ROUNDS = 100, 0.05, 0.9, 7
ARM = preset("bounded-energy", floor=FLOOR, share=SHARE, at_most=1, within_rounds=ROUNDS)


def energies(layout, payload):
    return np.square(layout.rows(payload).view("<f4").astype(np.float64)).sum(axis=1)


def must_of(arranger):
    assert arranger.worth is not None
    return arranger.worth >= worth.MUST


class Rounds(Two):
    """One gather after another; payloads whose chunks differ in energy as widely as `spread`."""

    def __init__(self, *, spread=1.0, arm=ARM, **settings):
        order = ORDERS.create(arm.order)
        super().__init__(chunks=CHUNKS, repair=arm.repair, order=order, **settings)
        self.spread = spread
        self.reports = []
        self.took_s = []

    def round(self, loss=0.0, *, policy=ARM.gather, number=None, scale=1.0):
        number = len(self.reports) if number is None else number
        transfer, began_s = Leg.GATHER.transfer(number), self.simulation.now_s
        self.link.loss = loss
        payload = random_payload(self.layout, transfer)
        factors = np.random.default_rng(transfer).standard_normal(CHUNKS) * self.spread
        rows = self.layout.rows(payload).view("<f4")
        rows *= scale * np.exp(factors)[:, np.newaxis].astype(np.float32)
        self.receive(transfer, rule=policy.stop_rule(False)(self.layout))
        self.send(transfer, payload)
        both = (self.worker, self.server)
        self.simulation.run(
            done=lambda: all(transfer in ended(party) for party in both), limit=400_000
        )
        received, sent = (
            next(e.report for e in reversed(party.events) if isinstance(e, TransferDone))
            for party in (self.server, self.worker)
        )
        self.took_s.append(received.ended_s - began_s)
        self.reports.append(sent)
        energy = energies(self.layout, payload)
        return float(energy[self.reports[-1].received].sum() / max(energy.sum(), 1e-300))
