"""The evidence that a faithful lab leaves for the gates, with what a test changes in it."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from testbed.experiment import Limits
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.verdict.calibration import Calibration, PathCalibration, QueueCalibration
from testbed.verdict.conservation import Conservation, LinkLedger
from testbed.verdict.gates import Gate, judge
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.link_settings import SettingsReader
from testbed.verdict.links_under_load import LinksUnderLoad, LinkUnderLoad
from testbed.verdict.processor_headroom import Headroom, Stall, Standstill, Wait

# What a network without delayed links has no use for.
WITHOUT_DELAYS = ("relay_late_s", "relay_late_max_s", "delay_error_s")


path = functools.partial(
    PathCalibration,
    sender="worker-1",
    receiver="server",
    configured_rate_bps=100_000_000,
    rate_bps=99e6,
    rtt_s=0.0001,
    probes_sent=20,
    probes_lost=0,
)


queue = functools.partial(
    QueueCalibration,
    link="server--s1",
    sender="s1",
    limit_bytes=150_000,
    peak_bytes=148_372,
    resolution_bytes=4_000,
    refused=4,
)


def waited(mean_s):
    return Wait(mean_s=mean_s, at_s=4.0)


def stalled(longest_s, **changes):
    return Stall(
        **{"processor": 0, "at_s": 2.0, "looks": 1000, "real_time": True} | changes,
        longest_s=longest_s,
    )


headroom = functools.partial(
    Headroom,
    duration_s=10.0,
    waited={"ovs-vswitchd": waited(0.0001)},
    longest_window_s=1.001,
    stalls=[stalled(0.004)],
    others=0.02,
    pressure=0.4,
)


ledger = functools.partial(
    LinkLedger,
    link="server--s1",
    sender="s1",
    offered=None,
    sent=5000,
    received=5000,
    queue_drops=0,
    interface_drops=0,
    delay_drops=0,
    delay_lost=0,
    socket_drops=0,
    injected=0,
)


under_load = functools.partial(
    LinkUnderLoad,
    link="server--s1",
    sender="s1",
    rate_bps=100_000_000,
    samples=1000,
    backlogged=100,
    packet_bytes=1514.0,
    holds_enough=True,
    loaded_s=0.8,
    left_out_s=0.0,
    delivered=0.999,
    worst=0.99,
    missing=0.0,
    most=0.999,
)


def conserved(*links, idle=True):
    return Conservation(links=list(links), switches=[], hosts=[], idle=idle, duration_s=10.0)


def sampler(folder, **changes):
    parts = {"queues": {"errors": 0}, "live": {"errors": 50, "last_error": "disk"}}
    facts = {"ticks": 900, "samples_lost": 9, "largest_gap_s": 0.1, "parts": parts, "problems": []}
    facts |= {"answers_left_out": 2, "answers_too_late": 1}
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples" / "sampler.json").write_text(json.dumps({**facts, **changes}))
    return folder


FOLDER = tempfile.TemporaryDirectory()  # of a run; removed when the tests end
LOSS = {"kind": "loss", "name": "loss", "host": "server", "leg": "gather", "rounds": [0], "q": 0.1}
LOST = {
    "name": "loss",
    "kind": "loss",
    "counts_as": "loss",
    "action": "end",
    "round": 0,
    "leg": "gather",
    "planned_s": 6.0,
    "acknowledged_s": 6.0,
    "met": 5000,
    "dropped": 510,
}


LINK = LinkEnds(
    name="server--s1",
    first=Port(node="server", interface="server-eth0", number=1, pid=1),
    second=Port(node="s1", interface="s1-eth1", number=1, pid=None),
    rate_bps=100_000_000,
    queue_bytes=150_000,
)


def host(name: str, pid: int, number: int = 1) -> HostInfo:
    return HostInfo(
        name=name,
        address=f"10.0.0.{number}",
        mac=f"00:00:00:00:00:0{number}",
        pid=pid,
        interface=f"{name}-eth0",
    )


def network_of(*links: LinkEnds, **facts: Any) -> LabInfo:
    return LabInfo(switches={"s1": 1}, hosts={}, links=list(links), **facts)


def evidence(paths=None, queues=None, limits=None, **changes):
    network = network_of(LINK)
    settings = SettingsReader(network)
    settings.read = settings.due  # all were as configured
    return {
        "config": {"limits": Limits(**(limits or {})).model_dump(), "impairments": [LOSS]},
        "directory": sampler(Path(FOLDER.name)),
        "network": network,
        "settings": settings,
        "calibration": Calibration(paths=paths or [path()], queues=queues or [queue()]),
        "ledgers": conserved(ledger()),
        "headroom": headroom(),
        "events": [{**LOST, "action": "begin"}, LOST],
        "load": LinksUnderLoad(links=[under_load()]),
        "switch_holds_bytes": 44_000_000,
        "standstills": [Standstill(part="ovs-vswitchd", longest_s=0.004, state="stopped")],
        "changes": LinkChanges(),
        "unreadable": "",
        "rounds": (),
    } | changes


def judged(**changes):
    return judge(**evidence(**changes))


def stopping(**changes):
    return {gate.key: gate.outcome for gate in judged(**changes) if gate.stops}


def gate_of(key: str, *, limits: Any = None, impairments: Any = (), **facts: Any) -> Gate:
    config = {"limits": Limits(**(limits or {})).model_dump(), "impairments": list(impairments)}
    (gate,) = judge(config, only=key, **facts)
    return gate
