"""The samplers: answers of the kernel that are long or late; processes by their names."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from testbed.lab.helpers.process import HelperProcess
from testbed.lab.kernel import netlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.link_counters import STATS2, STATS_BASIC, STATS_QUEUE
from testbed.lab.kernel.rtnetlink import NEW_QDISC, ROOT, TCMSG
from testbed.verdict import flows, queues
from testbed.verdict import sampler as sampling
from testbed.verdict.flows import TcpReader
from testbed.verdict.processes import ProcessSampler
from testbed.verdict.queues import BACKLOG_BYTES, SENT_BYTES, QueueReader, QueueSampler

MULTI = 0x2


def packed(kind: int, content: bytes, number: int, flags: int = MULTI) -> bytes:
    header = netlink.HEADER.pack(netlink.HEADER.size + len(content), kind, flags, number, 0)
    whole = header + content
    return whole + bytes(-len(whole) % 4)


def queue(interface: int, number: int, *, sent: int, backlog: int = 0) -> bytes:
    basic = netlink.attribute(STATS_BASIC, struct.pack("=QIxxxx", sent, sent // 1514))
    counters = netlink.attribute(STATS_QUEUE, struct.pack("=IIIII", 0, backlog, 0, 0, 0))
    body = TCMSG.pack(0, interface, 1 << 16, ROOT, 2) + netlink.attribute(STATS2, basic + counters)
    return packed(NEW_QDISC, body, number)


def done(number: int) -> bytes:
    return packed(netlink.DONE, bytes(4), number)


class FakeSocket:
    """Answers each request by the datagrams that `answer` makes for its number."""

    def __init__(self, answer: Callable[[int], list[bytes]]) -> None:
        self.answer = answer
        self.waiting: list[bytes] = []  # datagrams that are not read yet
        self.sequence = 0
        self.stale_answers = 0

    def send(self, request: bytes | bytearray) -> int:
        self.waiting += self.answer(netlink.number_of(bytes(request)))
        return len(request)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0)[:size]


_PART_BYTES = 1 << 15


@pytest.fixture
def kernel(monkeypatch):
    """Lets readers talk to fake sockets; returns a function that makes the next one."""
    sockets = []

    def use(answer):
        sockets.append(FakeSocket(answer))
        return sockets[-1]

    unused = iter(sockets)
    monkeypatch.setattr(netlink, "connect", lambda *_, **__: next(unused))
    names = {f"eth{number}": number for number in range(10_000)}
    monkeypatch.setattr(queues, "interface_index", lambda _, name: names[name])
    return use


def dumped(count, number, sent=0):
    messages = [queue(index, number, sent=sent + index) for index in range(count)]
    per_part = max(1, _PART_BYTES // len(messages[0]) - 1)
    parts = [b"".join(messages[at : at + per_part]) for at in range(0, count, per_part)]
    parts[-1] += done(number)
    return parts


@pytest.mark.parametrize("count", [2, 600, 6000])
def test_a_dump_of_any_number_of_interfaces_is_read(kernel, count):
    kernel(lambda number: dumped(count, number))
    reader = QueueReader([f"eth{number}" for number in range(count)])
    reader.capture()
    reader.capture()
    _, values = reader.decode()
    assert values.shape == (2, count, 5)
    assert values[1, :, SENT_BYTES].tolist() == list(range(count))
    assert reader.left_out == 0


@pytest.mark.parametrize("read", [0, 1, 2])
def test_an_answer_that_came_too_late_does_not_shift_those_after_it(kernel, read):
    opened = kernel(lambda number: dumped(500, number, sent=1000 * number))
    reader = QueueReader([f"eth{number}" for number in range(500)])
    late = dumped(500, 77)
    assert len(late) > 1
    opened.waiting = late[read:]  # what a reader that gave up did not read
    reader.capture()
    _, values = reader.decode()
    assert values[0, :, SENT_BYTES].tolist() == [2000 + number for number in range(500)]
    assert reader.stale_answers == len(late[read:])


def test_an_answer_without_a_wanted_interface_is_left_out_and_counted_and_a_refusal_told(kernel):
    counts = iter([3, 2, 3])
    opened = kernel(lambda number: dumped(next(counts), number))
    reader = QueueReader(["eth0", "eth2"])
    reader.capture()
    reader.capture()
    times_s, values = reader.decode()
    assert len(times_s) == len(values) == reader.left_out == 1
    opened.answer = lambda number: [packed(netlink.ERROR, bytes(20), number)]
    with pytest.raises(netlink.NetlinkError):
        reader.capture()


def test_a_host_that_does_not_answer_costs_only_its_own_sample_and_a_late_answer_none(
    kernel, tmp_path
):
    def answers(index, backlog):
        def answer(number):
            whole = queue(index, number, sent=100 * index + number, backlog=backlog * number)
            return [whole + done(number)]

        return answer

    silent, _ = (kernel(answers(index, 10 * (index == 1))) for index in (1, 2))
    first, second = (
        {"node": f"h{number}", "interface": f"eth{number}", "pid": number} for number in (1, 2)
    )
    link = {"name": "h1--h2", "first": first, "second": second, "rate_bps": 1, "queue_bytes": 1}
    sampler = QueueSampler(tmp_path, [link], 100.0)
    silent.answer, answer = lambda _: [], silent.answer
    with pytest.raises(BlockingIOError):
        sampler.sample(1)
    silent.answer = answer
    silent.waiting = [queue(1, 99, sent=0), queue(1, 98, sent=0)]
    sampler.sample(2)
    sampler.decode()
    assert sampler.table.rows == 3
    assert sampler.latest[:, SENT_BYTES].tolist() == [103, 203]
    assert sampler.latest[0, BACKLOG_BYTES] == 30
    assert (sampler.stale_answers, sampler.left_out) == (2, 0)


def test_an_answer_about_a_connection_that_came_too_late_is_dropped(kernel):
    opened = kernel(lambda number: [packed(20, b"the right one", number)])
    reader = TcpReader(11)
    opened.waiting = [packed(20, b"an old one", 99)]
    request = flows.Connection("10.0.0.1", 47000, "10.0.0.2", 40000).lookup()
    assert b"the right one" in reader.ask(request)
    assert reader.stale_answers == 1
    assert b"the right one" in reader.ask(request)
    assert opened.waiting == []


class Connections:
    """A reader of a kernel that knows one connection less each time that it is asked about one."""

    def __init__(self) -> None:
        self.ports = [40_000, 40_001]
        self.refuses = False

    def connections(self, *_: int) -> list[flows.Connection]:
        return [flows.Connection("10.0.0.1", 47_000, "10.0.0.2", port) for port in self.ports]

    def ask(self, request: bytes) -> bytes:
        if self.refuses:
            raise OSError("no namespace")
        self.refuses, self.ports = True, []
        return done(0)


def test_the_sampler_goes_on_when_a_connection_ends_before_the_kernel_refuses(
    tmp_path, monkeypatch
):
    reader = Connections()
    monkeypatch.setattr(flows.FlowSampler, "_reader", lambda self, host: reader)
    hosts = {"server": {"address": "10.0.0.1"}, "worker": {"address": "10.0.0.2"}}
    config = {"ports": [47_000, 47_999], "centre": "server", "hosts": list(hosts)}
    sampler = flows.FlowSampler(tmp_path, hosts, config, tmp_path)
    with pytest.raises(OSError, match="no namespace"):
        sampler.sample(0)  # one connection is gone, then nobody answers
    for tick in range(1, 9):
        with pytest.raises(OSError, match="no namespace"):
            sampler.sample(tick)


WRITES_NOTHING = """
from testbed.lab.helpers.process import Requests
requests = Requests()
requests.say({"ready": True})
requests.answer(requests.wait(), {"problems": ["queues: gone"]})
"""


def test_samples_that_could_not_be_written_are_an_error():
    helper = HelperProcess([sys.executable, "-c", WRITES_NOTHING], name="sampler").start()
    try:
        with pytest.raises(CommandError, match="no samples: queues: gone"):
            sampling.RunningSampler(helper).write()
    finally:
        helper.close()


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessSampler:
    """One host, whose namespace is the test's own; it scans at every sample."""
    for name in ("INTERVAL_S", "_SCAN_S"):
        monkeypatch.setattr(f"testbed.verdict.processes.{name}", 0.0)
    return ProcessSampler(tmp_path, {"h1": {"pid": os.getpid()}}, {})


HOLDS_TWO = """
from testbed.lab.kernel import namespaces
print(namespaces.hold("h1"), namespaces.hold("h2"), flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root")
def test_workers_that_share_a_process_are_sampled_by_their_threads(tmp_path, sampler):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shared:
        assert shared.stdout is not None and shared.stdin is not None
        numbers = shared.stdout.readline().split()
        hosts = {f"h{rank}": {"pid": int(number)} for rank, number in enumerate(numbers, 1)}
        sampler = ProcessSampler(tmp_path, hosts, {"training": os.getpid()})
        sampler._ignored.clear()  # here they are the workers as well
        for _ in range(8):
            sampler.sample()
        of_shared = {name: value for name, value in sampler.latest.items() if name in hosts}
        assert set(of_shared) == {"h1", "h2"}
        memory = [resident_bytes for _, _, resident_bytes in of_shared.values()]
        resident = Path(f"/proc/{shared.pid}/statm").read_text().split()[1]
        assert sum(memory) == pytest.approx(int(resident) * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
        assert not [name for name in sampler.latest if name.startswith("-c")]
        shared.stdin.write("\n")


def test_each_sample_has_its_process_and_its_host_and_a_shell_the_program_that_it_becomes(
    sampler: ProcessSampler, tmp_path: Path
):
    argv = ["sh", "-c", "read line; exec sleep 3600"]
    with (
        subprocess.Popen(["sleep", "3600"]) as of_lab,
        subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as shell,
    ):
        try:
            sampler._named[of_lab.pid] = "part-of-the-lab"
            for _ in range(3):
                sampler.sample()
            assert shell.stdin is not None
            shell.stdin.write("\n")
            shell.stdin.close()
            words = Path(f"/proc/{shell.pid}/cmdline")
            deadline_s = time.monotonic() + 10
            while not words.read_bytes().startswith(b"sleep") and time.monotonic() < deadline_s:
                time.sleep(0.01)
            for _ in range(3):
                sampler.sample()
            sampler.write(tmp_path / "processes.parquet", last=True)
        finally:
            for process in (of_lab, shell):
                process.kill()
    names: dict[int, set[tuple[str, str | None]]] = {of_lab.pid: set(), shell.pid: set()}
    for sample in pl.read_parquet(tmp_path / "processes.parquet").iter_rows(named=True):
        if sample["pid"] in names:
            names[sample["pid"]].add((sample["name"].partition(".")[0], sample["host"]))
    assert names == {of_lab.pid: {("part-of-the-lab", None)}, shell.pid: {("h1:sleep", "h1")}}
