"""Runs the tests that execute certain lines, on a module whose source was changed in memory.

All tests run once, and their lines in the watched files are noted. What a test module calls while
it is imported counts for each of its tests. From then on, each changed source meets only the tests
that execute the changed lines, the quickest first, in a forked child of a process that has imported
everything but the project. Tests of random examples run with a few,
always the same; once all tests have passed so, these run again with as many as they ask for.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

FEW_EXAMPLES = 20
# A child whose tests have used so much processor time has seen enough of the quick ones.
ENOUGH_S = 30.0
_MOST_BYTES = 8 << 30
# Of a function that one test calls more often, the later calls are not looked at.
_CALLS = 500
_PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures"]


class FewExamples:
    """A pytest plugin: random tests are short and always the same."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            function = getattr(item, "obj", None)
            asked = getattr(function, "_hypothesis_internal_use_settings", None)
            if asked is not None:
                vars(getattr(function, "__func__", function))[
                    "_hypothesis_internal_use_settings"
                ] = hypothesis.settings(
                    asked,
                    max_examples=min(FEW_EXAMPLES, asked.max_examples),
                    derandomize=True,
                    database=None,
                    phases=(Phase.explicit, Phase.generate),
                    suppress_health_check=list(HealthCheck),
                )


class LineTracer:
    """A pytest plugin that notes which lines of some files each test executes.

    Attributes:
        found: test -> its processor time in seconds, whether its examples are random, and file ->
            lines.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.found: dict[str, tuple[float, bool, dict[str, list[int]]]] = {}
        self._lines: dict[str, set[int]] = {str(file): set() for file in files}
        self._at_import: dict[Path, dict[str, set[int]]] = {}  # of a test module
        self._calls: Counter[CodeType] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self._traced():
            report = yield
        self._at_import[collector.path] = {
            file: set(lines) for file, lines in self._lines.items() if lines
        }
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_s = time.process_time()
        try:
            with self._traced():
                return (yield)
        finally:
            used_s = time.process_time() - began_s
            at_import = self._at_import[item.path]
            lines_of = {
                file: sorted(lines | at_import.get(file, set()))
                for file, lines in self._lines.items()
            }
            random = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            self.found[item.nodeid] = used_s, random, lines_of

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        """Has `_lines` tell what is executed meanwhile."""
        for lines in self._lines.values():
            lines.clear()
        self._calls.clear()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        # A module or a class body runs for whoever imports it first.
        if code.co_filename not in self._lines or not code.co_flags & inspect.CO_NEWLOCALS:
            return None
        self._lines[code.co_filename].add(code.co_firstlineno)
        self._calls[code] += 1
        return self._line if self._calls[code] <= _CALLS else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        self._lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line


class _ProcessorTime:
    """A pytest plugin: a test that takes far longer than it did has found the change."""

    def __init__(self, limits_s: dict[str, float]) -> None:
        self._limits_s = limits_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, self._limits_s[item.nodeid])  # SIGPROF ends us
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


class _Changed(importlib.abc.SourceLoader):
    """Imports one module from other source than its file's."""

    def __init__(self, name: str, file: Path, source: str) -> None:
        self._name, self._file, self._source = name, file, source

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._file, loader=self)

    def get_filename(self, fullname: str) -> str:
        return str(self._file)

    def get_data(self, path: str) -> bytes:
        return self._source.encode()


class Suite:
    """Tests, and which of them execute which lines.

    Attributes:
        count: how many tests there are.
    """

    def __init__(self, root: Path, tests: Sequence[str], files: Sequence[Path]) -> None:
        """Runs all `tests` of the project at `root` once; RuntimeError unless they pass."""
        self._root = root
        _import_the_rest()
        with tempfile.NamedTemporaryFile("r+") as told:

            def look() -> bool:
                tracer = LineTracer(files)
                passed = pytest.main([*_PYTEST, *tests], plugins=[FewExamples(), tracer]) == 0
                Path(told.name).write_text(json.dumps(tracer.found))
                return passed

            if not self._in_child(look):
                raise RuntimeError("the tests fail without any change")
            self._found = json.load(told)
        self.count = len(self._found)

    def find(self, file: Path, source: str, lines: range, function: range) -> str | None:
        """Why the tests fail when `file` has this source: what they do; None if they pass.

        Runs those that execute any of `lines`; if there are none, because some run at import only,
        those of `function`.
        """
        chosen = self._executing(file, lines) or self._executing(file, function)
        if not chosen:
            return None
        module = ".".join(file.relative_to(self._root).with_suffix("").parts)

        def quick() -> bool:
            return self._pass(module, file, source, chosen, few=True)

        def thorough() -> bool:
            return self._pass(module, file, source, random, few=False)

        random = [test for test in chosen if self._found[test][1]]
        if not self._in_child(quick):
            return f"one of {len(chosen)} tests"
        if random and not self._in_child(thorough):
            return f"one of {len(random)} random tests"
        return None

    def _executing(self, file: Path, lines: range) -> list[str]:
        """The tests that execute any of the lines, quickest first, as far as there is time."""
        hit = [
            (used_s, test)
            for test, (used_s, _, lines_of) in self._found.items()
            if any(line in lines for line in lines_of.get(str(file), ()))
        ]
        chosen: list[str] = []
        total_s = 0.0
        for used_s, test in sorted(hit):
            total_s += used_s
            if chosen and total_s > ENOUGH_S:
                break
            chosen.append(test)
        return chosen

    def _pass(
        self, module: str, file: Path, source: str, tests: Sequence[str], *, few: bool
    ) -> bool:
        # Without few examples a test takes longer than it did, by as much as it has more of them.
        limits_s = {test: 5 * self._found[test][0] + (5 if few else 60) for test in tests}
        sys.meta_path.insert(0, _Changed(module, file, source))
        plugins: list[object] = [_ProcessorTime(limits_s)]
        if few:
            plugins.append(FewExamples())
        return pytest.main([*_PYTEST, *tests], plugins=plugins) == 0

    def _in_child(self, work: Callable[[], bool]) -> bool:
        """Whether `work` returns True in a child of its own, which says nothing."""
        child = os.fork()
        if child == 0:
            passed = False
            with contextlib.suppress(BaseException):
                silence = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(silence, number)
                resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
                os.chdir(self._root)
                passed = work()
            os._exit(0 if passed else 1)
        return os.waitpid(child, 0)[1] == 0


def _import_the_rest() -> None:
    """Imports what takes time, and none of the project, so that children need not."""

    @hypothesis.settings(max_examples=1, database=None, deadline=None)
    @given(st.text(), st.floats())
    def one(text: str, number: float) -> None:
        np.random.default_rng(0).random()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--version"])
