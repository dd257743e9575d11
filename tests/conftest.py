"""Order of the tests: rooms that take the longest first, real labs last. No test fails for being
slow.

Tests without a lab run side by side in `./lab test`, and some of them in real time; so do those of
labs that measure nothing in time (`beside`). One that fails there is tried once more, unless many
have failed. Nothing else is ever tried again.

Any other lab test measures a real network in real time. One that fails is tried again: once in any
case, and twice more only if the machine was disturbed: a processor stood still during the test (see
stalls.py), the hypervisor took a share of them, or just after it others take them or its timers
are late. The next try waits until that is over, half a minute at most.

The closing summary warns of every test that was tried again, with what it said and what became of
it, so a fault that shows only now and then is not hidden.

All run in a used clone, in another user's home (used_clone.py), and none may touch its `runs/`.
"""

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from testbed.__main__ import main
from testbed.lab.kernel import process_status
from testbed.machine import steadiness
from tests import used_clone
from tests.stalls import Witness

# A busy machine may take any time to draw an example and to try it. Half as many examples as usual:
# they are others in each run, and with --long there are twice as many.
for name, examples in (("patient", 50), ("thorough", 100)):
    hypothesis.settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("patient")

_TESTS = Path(__file__).parent
_LABS = _TESTS / "lab"
# Side by side, a file that takes a minute and begins last keeps one processor busy and others idle.
_LONGEST_ROOMS = ("ddp", "documentation", "fuzz", "bench", "examples", "training")
MACHINE = pytest.StashKey[str]()  # what the probe found, in words; filled by the first lab test
STALLS = pytest.StashKey[Witness]()  # from the first lab test on
_HOME = pytest.StashKey[Path]()  # of the process that made it
_OF_HOME = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR")
_TRIES_MORE = 3
_CALM_WITHIN_S = 30.0
# Of all processors' time during a test. A pause of 5 ms at the wrong moment fails a gate, and takes
# no share that could be seen; quiet hours have below 0.01.
_STOLEN = 0.03
# Beyond these a measurement in real time may fail through no fault of what is measured. Quiet
# machines of two cores: others below 0.02, timers 0.06 ms late in the median, p99 below 0.5 ms.
_DISTURBING_SHARE = 0.10
_DISTURBING_LATE_S = 0.002
_CHANCES = 3  # in each process of those side by side: where more fail, it is not by chance
_tried_again: dict[str, list[str]] = {}
_had_a_chance: set[str] = set()
_began: dict[str, tuple[process_status.MachineTicks, float]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        hypothesis.settings.load_profile("thorough")
    if not hasattr(config, "workerinput"):  # those side by side inherit it
        home = Path(tempfile.mkdtemp(prefix="lab-tests-"))
        home.chmod(0o755)  # some tests become another user
        config.stash[_HOME] = home
        os.environ["HOME"] = str(used_clone.make_home(home / "another user"))
        for name in _OF_HOME:
            os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _LABS in item.path.parents:
            item.add_marker(pytest.mark.lab)
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)  # the closing line counts them
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_place)
    beside_others = hasattr(config, "workerinput")
    for item in items:
        if item.get_closest_marker("flaky") is not None:
            continue
        if beside_others:
            item.add_marker(pytest.mark.flaky(reruns=1, condition=_perhaps_by_chance(item)))
        elif item.get_closest_marker("lab") is not None:
            again = pytest.mark.flaky(reruns=_TRIES_MORE, condition=_disturbed_at(item))
            item.add_marker(again)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # to look at what was imported takes the collector half a second each time


def _place(item: pytest.Item) -> tuple[bool, int]:
    room = item.path.relative_to(_TESTS).parts[0] if _TESTS in item.path.parents else ""
    rank = _LONGEST_ROOMS.index(room) if room in _LONGEST_ROOMS else len(_LONGEST_ROOMS)
    return item.get_closest_marker("lab") is not None, rank


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("lab") is not None:
        if STALLS not in item.config.stash:
            item.config.stash[STALLS] = Witness()
        _began[item.nodeid] = process_status.machine_ticks(), time.monotonic()
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    if STALLS in config.stash:
        config.stash[STALLS].close()
    if _HOME in config.stash:
        shutil.rmtree(config.stash[_HOME], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _clone() -> Iterator[Path]:
    """A used clone, which everything runs in from now on, also what runs as another user."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="lab-tests-"))
    folder.chmod(0o755)
    clone = used_clone.make(folder)
    os.chdir(clone)
    yield clone
    os.chdir(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _leaves_the_clone(_clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that has written into the clone's results."""
    before = used_clone.state(_clone)
    monkeypatch.chdir(_clone)  # and back to it, wherever the test goes
    yield
    assert used_clone.state(_clone) == before, "it wrote into runs/; give it a folder of its own"


@pytest.fixture
def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str, str]]:
    """Runs a command without a process, and draws nothing; its exit status and what it printed."""

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr("analysis.report.writing.draw_all", lambda *_: [])
        monkeypatch.setattr(sys, "argv", ["lab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def _same_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes what a user's file adds off Python's search path after the test, as after a call."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def _perhaps_by_chance(item: pytest.Item) -> Callable[[BaseException | None], bool]:
    """As `_disturbed_at`, for a test that runs beside others."""

    def perhaps(error: BaseException | None) -> bool:
        had_all = item.nodeid in _had_a_chance or len(_had_a_chance) == _CHANCES
        if error is None or had_all:
            return False
        _had_a_chance.add(item.nodeid)
        return True

    return perhaps


def _disturbed_at(item: pytest.Item) -> Callable[[BaseException | None], bool]:
    """Pytest-rerunfailures asks it after each try, with the error of that try."""

    def disturbed(error: BaseException | None) -> bool:
        reasons = _tried_again.get(item.nodeid, [])
        if error is None or len(reasons) == _TRIES_MORE:
            return False
        ticks, began_s = _began[item.nodeid]
        why = stood_still(item.config, began_s) or _stolen_since(ticks)
        why = why or disturbance(steadiness.watch())
        if not why and reasons:
            return False
        _tried_again[item.nodeid] = [*reasons, why or "nothing that we measure disturbed it"]
        if why:
            _await_calm()
        return True

    return disturbed


def disturbance(moment: steadiness.Moment) -> str:
    """It says why no measurement in real time can be relied on now; it is empty if one can."""
    taken = moment.others + moment.stolen > _DISTURBING_SHARE
    return moment.sentence() if taken or moment.late_p99_s > _DISTURBING_LATE_S else ""


def stood_still(config: pytest.Config, since_s: float) -> str:
    """It says how long a processor stood still since a time of `time.monotonic()`, if it did."""
    longest_s = config.stash[STALLS].longest_s(since_s)
    return f"a processor stood still for {longest_s * 1e3:.0f} ms" if longest_s else ""


def _stolen_since(began: process_status.MachineTicks) -> str:
    gained = process_status.machine_ticks().since(began)
    share = gained.stolen / max(1, gained.all)
    return f"the hypervisor took {share:.0%} meanwhile" if share > _STOLEN else ""


def _await_calm() -> None:
    deadline_s = time.monotonic() + _CALM_WITHIN_S
    while disturbance(steadiness.watch()) and time.monotonic() < deadline_s:
        time.sleep(1.0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if MACHINE in config.stash:
        terminalreporter.write_line(f"this machine: {config.stash[MACHINE]}")
    tries = terminalreporter.stats.get("rerun", [])
    if not tries:
        return
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    names = [*dict.fromkeys(report.nodeid for report in tries)]
    terminalreporter.write_sep("!", f"tried again: {len(names)}", yellow=True, bold=True)
    for name in names:
        outcome = "passed then" if name in passed else "did not pass then either"
        terminalreporter.write_line(f"{name}: {outcome}", yellow=True)
        reasons = _tried_again.get(name, ["it ran beside others"])
        words_of_tries = [_words(report) for report in tries if report.nodeid == name]
        for words, reason in zip(words_of_tries, reasons, strict=False):
            terminalreporter.write_line(f"  {reason}: {words}", yellow=True)


def _words(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash is not None else str(report.longrepr)
    return next(iter(words.splitlines()), "")
