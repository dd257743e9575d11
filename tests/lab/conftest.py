"""Tests in here build real labs; each file checks that the host is as it was before."""

import functools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from testbed.machine import capabilities, steadiness
from testbed.verdict.gates import STOPPING
from tests.conftest import MACHINE, stood_still
from tests.documentation.described import undescribed
from tests.lab.gates import altered

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 6,
    "seeds": [1],
    "topology": {"name": "star", "workers": 2, "rate_bps": 100_000_000, "queue_bytes": 150_000},
    "training": {"batch_size": 16, "evaluate_every": 3},
    "transport": {"peer_timeout_s": 10},
    "arms": {"dblp": {"protocol": "dblp"}},
    # The gates have the limits that users get.
    "limits": {"run_timeout_s": 60},
}
# Gates that say that the machine was busy.
OF_THE_MACHINE = {"cpu_wait_s", "cpu_others", "clock_stall_s", "standstill_s"}
# Gates that a busy machine may fail in a lab that is as it should be.
TIMING = {
    *OF_THE_MACHINE,
    "impairment_late_s",
    *("rate_error", "rate_spread", "rtt_error", "rtt_error_s", "rate_under_load"),
    *("relay_late_s", "relay_late_max_s", "delay_error", "delay_error_s", "samples_missing"),
}
# A fifth of a second for each path that is measured before the training: two of the paths that are
# alike will do where a test is not about that.
FEW_PATHS = {
    "testbed.verdict.calibration": """
_of_every_path = calibrate

def calibrate(network, **options):
    return _of_every_path(network, most_alike=2)
"""
}


@pytest.fixture(scope="session")
def found_capabilities() -> dict[str, capabilities.Capability]:
    return capabilities.probe()


@pytest.fixture(scope="session")
def machine(
    found_capabilities: dict[str, capabilities.Capability], pytestconfig: pytest.Config
) -> steadiness.Findings | None:
    """Probe once, before the first lab test, what this machine holds; None: no lab at all."""
    if capabilities.missing(found_capabilities):
        return None
    if hasattr(pytestconfig, "workerinput"):  # what others leave now tells nothing
        low = (steadiness.RATES_BPS[-1], 1.0)
        result = steadiness.Findings(moment=steadiness.watch(0.1), trials=[low])
    else:
        result = steadiness.probe()
    pytestconfig.stash[MACHINE] = result.sentence()
    if result.rate_bps is not None:
        SMALL["topology"]["rate_bps"] = result.rate_bps
    return result


@pytest.fixture(scope="session", autouse=True)
def _needs_a_lab(
    found_capabilities: dict[str, capabilities.Capability], machine: steadiness.Findings | None
) -> None:
    absent = capabilities.missing(found_capabilities)
    if absent:
        pytest.skip(f"needs capability {absent[0]}")


@pytest.fixture(scope="session")
def held_rate_bps(machine: steadiness.Findings) -> int:
    """A rate that this machine holds for four hosts; without one the test is skipped."""
    if machine.rate_bps is None:
        pytest.skip(f"this machine holds no rate for a lab: {machine.sentence()}")
    return machine.rate_bps


OkOrStalled = Callable[[dict[str, Any]], None]


@pytest.fixture
def ok_or_stalled(pytestconfig: pytest.Config) -> OkOrStalled:
    """Asserts that a verdict is ok, or that only timing stopped it as a processor stood still."""
    began_s = time.monotonic()

    def check(status: dict[str, Any]) -> None:
        if status["verdict"] == "ok":
            return
        stopping = {gate["key"] for gate in status["gates"] if gate["outcome"] in STOPPING}
        assert status["verdict"] == "invalid" and stopping <= TIMING, status["reason"]
        stalled = stood_still(pytestconfig, began_s)
        assert stalled, status["reason"]
        warnings.warn(f"{stalled}: {status['reason']}", stacklevel=2)

    return check


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_ALONE = "sandboxes left alone"


def host_state() -> dict[str, Any]:
    def printed(*argv: str) -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    settings = {}
    for path in [*Path("/proc/sys/net").rglob("*"), Path("/proc/sys/fs/file-max")]:
        if path.name == "nf_conntrack_count":  # no setting: the host's connections at present
            continue
        try:
            settings[str(path)] = path.read_text() if path.is_file() else ""
        except OSError:
            continue
    # A sandbox in use is its command's child; somebody else's lab may well run beside this test.
    left_alone = sorted(
        process.info["pid"]
        for process in psutil.process_iter(["name", "ppid", "pid"])
        if process.info["name"] == "unshare" and process.info["ppid"] == 1 and is_alive(process)
    )
    return {
        "links": sorted(load["ifname"] for load in json.loads(printed("ip", "-j", "link"))),
        "namespaces": printed("ip", "netns", "list"),
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "settings": settings,
        _ALONE: left_alone,
    }


@pytest.fixture(scope="module")
def unchanged_host() -> Iterator[None]:
    """Fails a file's last test if the host differs after it; waits a moment for the kernel."""
    before = host_state()
    yield
    deadline_s = time.monotonic() + 5
    while differs := _differences(before, host_state()):
        assert time.monotonic() < deadline_s, differs
        time.sleep(0.1)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    others = set(before[_ALONE]) - set(after[_ALONE])  # whose tests have ended them meanwhile
    after[_ALONE] = sorted({*after[_ALONE], *others})
    return {key: [before[key], after[key]] for key in before if after[key] != before[key]}


class Results:
    """The finished runs of a small experiment, and how they ended."""

    def __init__(self, status: int | None, folder: Path, output: str = "") -> None:
        self.status = status
        self.folder = folder
        self.output = output  # of a command

    def run(self, arm: str = "dblp") -> Path:
        result = [path for path in self.folder.glob(f"*/{arm}-s*") if path.suffix == ""]
        assert len(result) == 1, (self.output, list(self.folder.rglob("*")))
        return result[0]

    def verdict(self, arm: str = "dblp") -> dict[str, Any]:
        return dict(json.loads((self.run(arm) / "status.json").read_text()))

    def assert_trained(self) -> None:
        """Every run trained to its end, and nothing was wrong but perhaps the machine's timing."""
        result = [path for path in self.folder.glob("*/*/status.json") if not path.parent.suffix]
        assert result, self.output
        for status in map(json.loads, (path.read_text() for path in result)):
            assert status["verdict"] in ("ok", "invalid"), status
            stopping = [gate for gate in status["gates"] if gate["outcome"] in STOPPING]
            assert {entry["key"] for entry in stopping} <= TIMING, status
        assert self.status in (0, 1), self.output

    def events(self, name: str, arm: str = "dblp") -> list[dict[str, Any]]:
        lines = (self.run(arm) / "events" / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def _written(folder: Path, document: Mapping[str, Any]) -> Path:
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(dict(document)))
    return path


def executed(
    folder: Path,
    *,
    document: Mapping[str, Any] = SMALL,
    altered_by: Mapping[str, str] = FEW_PATHS,
    retries: int = 0,
    capture: Sequence[str] = (),
    **changes: Any,
) -> BaseProcess:
    """Start the runs of a document with changes; no report is drawn at the end."""
    from tests.lab import execute  # imports torch: not in sandboxes, which import this file, too

    environment = altered.environment(folder.with_suffix(".altered"), altered_by)
    path = _written(folder, {**document, **changes})
    return execute.start(path, folder, environment=environment, retries=retries, capture=capture)


def finished(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    usual: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 100, "check": False}
    return subprocess.run([sys.executable, "-m", "testbed", *words], **{**usual, **options})


def run_to_its_end(folder: Path, *, few_paths: bool = True, **changes: Any) -> Results:
    """Run SMALL with changes, without a report."""
    process = executed(folder, altered_by=FEW_PATHS if few_paths else {}, **changes)
    try:
        process.join(250)
    finally:
        process.kill()
        process.join()
    for status in folder.glob("*/*/status.json"):
        assert undescribed(status.parent) == [], "not in run_directory_format.yaml"
    return Results(process.exitcode, folder)


Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Starts `lab run` on SMALL with changes; what is still alive afterwards is ended."""
    started = []

    def begin(folder: str = "out", **changes: Any) -> subprocess.Popen[str]:
        out = tmp_path / folder
        words = ("run", str(_written(out, {**SMALL, **changes})), "--out", str(out))
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed", *words, "--retries", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def run_small(tmp_path: Path, held_rate_bps: int) -> Callable[..., Results]:
    return functools.partial(run_to_its_end, tmp_path / "out")


_shared: dict[tuple[str, str], Results] = {}


@pytest.fixture
def shared_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, held_rate_bps: int
) -> Callable[..., Results]:
    """As `run_small`, but one run for all tests of a file; one that is tried again runs it anew."""

    def run(name: str, **changes: Any) -> Results:
        key = (request.module.__name__, name)
        if key not in _shared or getattr(request.node, "execution_count", 1) > 1:
            _shared[key] = run_to_its_end(tmp_path_factory.mktemp(name) / "out", **changes)
        return _shared[key]

    return run


def wait_for(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if value := condition():
            return value
        time.sleep(0.01)
    raise TimeoutError


def find_process(command: subprocess.Popen[str] | BaseProcess, *words: str) -> list[psutil.Process]:
    """The command's descendants whose command line contains all words, oldest first."""
    result = []
    for process in psutil.Process(command.pid).children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if all(any(word in part for part in line) for word in words):
            result.append(process)
    return sorted(result, key=lambda process: (process.create_time(), process.pid))


def training_has_begun(folder: Path) -> bool:
    return any(path.stat().st_size > 0 for path in folder.rglob("rounds.jsonl"))
