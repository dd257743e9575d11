"""Schedulers that may be used, shares of blocks, and what is taken from workers."""

import functools
import io
import os
import select
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.cluster import block, scheduler, worker
from testbed.cluster.scheduler import Scheduler
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError


def run(key: str) -> Any:
    return SimpleNamespace(key=key, label=key, config=lambda: key)


class Future:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Dask:
    """A client whose workers execute at once; `does` says what becomes of a run on a worker."""

    status = "running"

    def __init__(self, names: str, does: Mapping[tuple[str, str], str]) -> None:
        self.names, self.does = set(names), dict(does)
        self.submitted: list[tuple[str, str]] = []

    def scheduler_info(self, n_workers: int) -> Any:
        return {"workers": {name: {"resources": {"lab": 1.0}} for name in self.names}}

    def submit(self, call: Any, *, workers: list[str], **options: Any) -> Any:
        task = call()
        busy = [name for name, _ in self.submitted[-len(self.names) + 1 :]]
        worker = sorted(workers, key=lambda name: (name in busy, name))[0]
        self.submitted.append((worker, task))
        verdicts = {key: self.does.get((worker, key), "ok") for key in task}
        reply: dict[str, Any] = {"worker": worker, "packed": verdicts}
        for verdict in verdicts.values():
            if verdict.startswith("lacks"):
                reply["refused"] = verdict
        status = "error" if "dies" in verdicts.values() else "finished"
        return Future(status=status, result=lambda: reply, exception=lambda: "killed")


@pytest.fixture
def shared(monkeypatch):
    """Shares out blocks, each a text of runs' names; tells what ended how, was left and said."""

    def store(folder: Path, runs: Any, verdicts: Mapping[str, Any]) -> list[Outcome]:
        if "nonsense" in verdicts.values():
            raise ValueError("a folder is missing")
        outcome = functools.partial(Outcome, directory=Path(), reason="", executed=True)
        return [outcome(run=run, verdict=verdicts[run.key]) for run in runs]

    monkeypatch.setattr(block, "store", store)
    monkeypatch.setattr(block, "task", lambda configs, capture: "".join(configs))
    monkeypatch.setattr(worker, "execute", lambda task, sweep: task)

    def share_out(dask: Dask, *blocks: str) -> Any:
        shares = object.__new__(Scheduler)
        shares.__dict__.update(_client=dask, _address="", _capture=[], _sweep="", _submitted={})
        done: dict[str, str] = {}
        lines: list[str] = []

        def end(outcome: Any) -> None:
            assert outcome.run.key not in done  # none twice
            done[outcome.run.key] = outcome.verdict

        runs = [[run(key) for key in block] for block in blocks]
        left = shares.share_out(runs, Path(), end=end, say=lines.append)
        return done, [run.key for run in left], lines

    monkeypatch.setattr(scheduler, "_POLL_S", 0)
    return share_out


def test_blocks_stay_together_and_all_workers_have_some(shared):
    dask = Dask("AB", {})
    assert shared(dask, "ab", "cd", "ef") == (dict.fromkeys("abcdef", "ok"), [], [])
    assert dask.submitted[:2] == [("A", "ab"), ("B", "cd")]


def test_a_block_that_costs_too_many_workers_is_given_up_and_the_others_are_done(shared):
    done, left, lines = shared(Dask("A", {("A", "b"): "dies"}), "ab", "cd")
    assert (done, left) == ({"c": "ok", "d": "ok"}, ["a", "b"])
    assert lines == ["a: given up: killed"]


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        ("lacks torch", "lacks torch"),
        ("nonsense", "sent other results than asked for: a folder is missing"),
    ],
)
def test_a_worker_that_lacks_something_is_left_out_and_said_once(shared, becomes, why):
    dask = Dask("AB", {("A", key): becomes for key in "abcd"})
    done, _, lines = shared(dask, "a", "b", "c", "d")
    assert done == dict.fromkeys("abcd", "ok")
    assert lines == [f"worker A is left out: {why}"]


def test_without_a_worker_one_is_waited_for(shared, monkeypatch):
    dask = Dask("", {})
    there = iter([set(), set(), {"A"}])
    monkeypatch.setattr(Scheduler, "workers", lambda self: next(there, {"A"}))
    done, _, lines = shared(dask, "a", "b")
    assert done == dict.fromkeys("ab", "ok")
    assert lines == ["waiting for a worker that was started with --resources lab=1"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((address, "valid: tls://HOST:PORT, or tcp://127") for address in ("", "host:1")),
        *(
            (address, "valid: tls://HOST:PORT, or tcp://127")
            for address in (
                *("tls://h", "tls://u@h:1", "tls://h?q:1", "tls://h:1?q", "tls://h#f:1"),
                *("tls://h:1\n", "tls://a\nb:1", "  tls://h:1", "TCP://127.0.0.1:1", "tls://h:x"),
            )
        ),
        *((address, "valid: tls://HOST:PORT") for address in ("http://127.0.0.1:1", "tcp://[::1")),
        *((f"tls://h:{port}", f"port {port}; valid: 1 to 65535$") for port in (0, 65536)),
        ("tls://300.1.1.1:80", "300.1.1.1.*valid: tls://HOST:PORT"),
        ("tls://[::g]:8786", "'::g'.*valid: tls://HOST:PORT"),
        ("tcp://192.0.2.1:8786", "without TLS only on this machine"),
        ("tcp://127.example.org:8786", "without TLS only on this machine"),
        ("tls://192.0.2.1:8786", "DASK_DISTRIBUTED__COMM__TLS__CA_FILE"),  # what is to be set
    ],
)
def test_an_address_that_may_not_be_used_is_refused(address, message):
    with pytest.raises(InputError, match=f"(?s)--scheduler .*{message}"):
        Scheduler(address).connect()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"])
def test_a_scheduler_that_does_not_answer_is_one_line(address):
    with pytest.raises(InputError, match=r"no scheduler answers: .*refused") as caught:
        Scheduler(address).connect()
    assert "\n" not in str(caught.value)


def test_the_lab_and_a_worker_s_function_need_no_dask():
    code = (
        "import sys; sys.modules['distributed'] = sys.modules['dask'] = None\n"
        "import testbed.cli.execution, testbed.cluster.scheduler, testbed.cluster.block\n"
        "from testbed.cluster.scheduler import Scheduler\n"
        "from testbed.shared.input_error import InputError\n"
        "try: Scheduler('tcp://127.0.0.1:1').connect()\n"
        "except InputError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.startswith("--scheduler: the package 'distributed' is not installed; pip")


def packed(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_folders_come_as_they_were_but_for_links_and_pipes(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "run" / "events").mkdir(parents=True)
    (there / "run" / "events" / "rounds.jsonl").write_bytes(b"\0\1" * 5000)
    (there / "run" / "config.json").write_text("{}")
    (there / "run" / "link").symlink_to("/etc/passwd")
    here.mkdir()
    block.unpack(worker.pack(there), here, {"run"})
    assert (here / "run" / "events" / "rounds.jsonl").read_bytes() == b"\0\1" * 5000
    assert {path.name for path in (here / "run").iterdir()} == {"events", "config.json"}


@pytest.mark.parametrize(
    "name", ["other/config.json", "../run/x", "run/../../x", "/run/x", "run/../x", ".", ""]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, name):
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(ValueError, match="is no file of these runs"):
        block.unpack(packed((name, b"x")), here, {"run"})
    assert [path.name for path in tmp_path.rglob("x")] == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_what_is_no_file_is_refused(tmp_path, kind):
    with pytest.raises(ValueError, match="is no file of these runs"):
        block.unpack(packed(("run/x", b""), kind=kind, link="/etc"), tmp_path, {"run"})
    assert list(tmp_path.iterdir()) == []


def test_names_that_no_disk_takes_and_what_is_too_large_are_the_senders_fault(
    tmp_path, monkeypatch
):
    for members in ((f"run/{'x' * 300}", b""),), (("run/k", b""), ("run/k/config.json", b"")):
        with pytest.raises(ValueError, match="no archive of runs"):
            block.unpack(packed(*members), tmp_path, {"run"})
    monkeypatch.setattr(block, "_MOST_UNPACKED_BYTES", 3)
    with pytest.raises(ValueError, match="'run/z' is no file of these runs"):
        block.unpack(packed(("run/y", b"ab"), ("run/z", b"ab")), tmp_path, {"run"})


def test_nothing_is_written_twice(tmp_path):
    with pytest.raises(ValueError, match="'run/x' is no file of these runs"):
        block.unpack(packed(("run/x", b"a"), ("run/x", b"b")), tmp_path, {"run"})
    assert (tmp_path / "run" / "x").read_bytes() == b"a"


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", packed(("run/x", b"abc" * 9999))[:-40]],
    # A packed one holds its time of day: processes that collect in another second would differ.
    ids=["empty", "text", "cut"],
)
def test_what_is_no_archive_is_one_sentence(tmp_path, content):
    with pytest.raises(ValueError, match="no archive of runs"):
        block.unpack(content, tmp_path, {"run"})


HOLDER = """
import sys
from testbed.cluster import worker
with worker.exclusive_lab(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_it(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "has it\n"


def test_the_second_waits_until_the_first_is_killed(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert has_it(first)
    second = holder(tmp_path)
    assert second.stdout is not None
    says, _, _ = select.select([second.stdout], [], [], 1.0)
    assert not says
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert has_it(second)
    second.communicate()
    with worker.exclusive_lab(str(tmp_path)):  # nobody has it any more
        pass


def test_the_folders_of_killed_workers_are_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"lab-block-{ended.pid}-x", f"lab-block-{os.getpid()}-y", "lab-block-mine-z"):
        (tmp_path / name).mkdir()
    worker.remove_abandoned(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"lab-block-{os.getpid()}-y", "lab-block-mine-z"}
