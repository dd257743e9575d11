"""A path that takes no full datagrams is told from one that loses most of any size, or all."""

import numpy as np
import pytest

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import SENT, ControlMessage, MessageType
from testbed.transport.core.outgoing import SizeSearch
from testbed.transport.core.wire import MOST_PIECES
from tests.fuzz.connections import Victim
from tests.transport.two_parties import Two, ended, gone

STEP_S = 0.004


class Path(Two):
    """Loses datagrams by their size: `takes(pieces, now_s)` is the chance that one arrives.

    To cut chunks and to join them is not the connection's: a chunk is lost like one datagram.
    """

    def __init__(self, takes, *, repair, seed=0):
        super().__init__(chunks=2000, repair=repair, rate_bps=5e6, delay_s=0.01)
        self.outgoing = self.worker.connection.outgoing
        self.outgoing.sizes, self.outgoing.likely = {2: 150, 3: 220, 6: 420}, (2, 3, 6)
        self._takes, self._draws = takes, np.random.default_rng(seed)
        self.link._loss = lambda: not self._arrives(self.outgoing.pieces)
        self.simulation.at(0.0, self._look)

    def _arrives(self, pieces):
        return self._draws.random() < self._takes(pieces, self.simulation.now_s)

    def _look(self):
        now_s = self.simulation.now_s
        for number, pieces in self.outgoing.trials():
            if self._arrives(pieces):
                self.server.connection.incoming.on_trial(number, now_s)
        self.worker.work()
        self.server.work()
        self.simulation.at(now_s + STEP_S, self._look)


REPAIRS = pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])


@REPAIRS
@pytest.mark.parametrize(("fits", "loss"), [(2, 0.0), (3, 0.0), (6, 0.1), (2, 0.3)])
def test_where_full_datagrams_vanish_and_smaller_ones_do_not_chunks_are_cut(repair, fits, loss):
    path = Path(lambda pieces, now_s: (1 - loss) * (pieces >= fits or now_s < 0.1), repair=repair)
    path.receive(0)
    path.send(0)
    path.run(4.0)
    assert path.outgoing.pieces == path.server.connection.incoming.pieces == fits
    assert path.path.datagram_wire_bytes == path.outgoing.sizes[fits]
    path.run(30.0)
    assert path.intact == [0] and ended(path.worker) == ended(path.server) == [0]


@REPAIRS
@pytest.mark.parametrize("loss", [0.9, 0.97])
@pytest.mark.parametrize("seed", range(2))
def test_a_path_that_loses_most_datagrams_of_any_size_has_no_hole(repair, loss, seed):
    path = Path(lambda pieces, now_s: 1 - loss, repair=repair, seed=seed)
    path.receive(0)
    path.send(0)
    path.run(8.0)
    assert path.outgoing.pieces == 1 and not gone(path.worker)


@REPAIRS
def test_nor_has_one_that_loses_all_for_a_while_or_for_ever(repair):
    path = Path(lambda pieces, now_s: not 0.1 < now_s < 3.0, repair=repair)
    path.receive(0)
    path.send(0)
    path.run(30.0)
    assert path.outgoing.pieces == 1 and path.intact == [0]
    path = Path(lambda pieces, now_s: now_s < 0.1, repair=repair)
    path.receive(0)
    path.send(0)
    path.run(30.0)
    assert path.outgoing.pieces == 1 and "data does not arrive" in gone(path.worker)


def test_only_who_has_seen_a_trial_can_confirm_it_and_once():
    search = SizeSearch()
    numbers = [number for _ in range(3) for number, _ in search.trials([2])]
    for number in range(1000):
        search.arrived(number)
    for _ in range(20):
        search.arrived(numbers[0])
    assert search.proven is None
    for number in numbers[1:]:
        search.arrived(number)
    assert search.proven == 2


def test_a_flood_of_trials_is_answered_a_bounded_number_of_times():
    victim = Victim("passes", chunks=9, tolerance=0.1)
    incoming = victim.sides["receiver"].incoming
    for number in range(10_000):
        incoming.on_trial(number, 1.0)
    assert len(incoming.poll_messages()) <= 256


@pytest.mark.parametrize("pieces", [0, MOST_PIECES + 1, 2**32 - 1])
def test_chunks_in_pieces_that_cannot_be_break_the_protocol(pieces):
    victim = Victim("passes", chunks=9, tolerance=0.1)
    with pytest.raises(ProtocolError, match="pieces"):
        victim.sides["receiver"].incoming.cut(pieces)
    victim.control("receiver", ControlMessage(MessageType.PIECES, body=SENT.pack(pieces)).encode())
    assert victim.restarts == 1
