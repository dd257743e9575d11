"""`./lab test`: linters, import contracts, unit tests, then tests in real namespaces."""

import collections
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LINT_IMPORTS = str(Path(sys.executable).with_name("lint-imports"))
_PYTEST = (sys.executable, "-m", "pytest")
_SHOWN = ("-q", "--durations=12", "--rerun-show-tracebacks")
_LABS = "tests/lab"  # each step imports its own tests only
_CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ruff: rules", (sys.executable, "-m", "ruff", "check", ".")),
    ("ruff: format", (sys.executable, "-m", "ruff", "format", "--check", ".")),
    ("mypy", (sys.executable, "-m", "mypy")),
    ("import contracts", (_LINT_IMPORTS, "--no-logo", "--no-cache")),
)
# A file's tests stay in one process, since they share what is costly to make; tests/conftest.py
# says which begin first.
_SIDE_BY_SIDE = (
    *("-n", str(min(8, os.cpu_count() or 1))),
    *("--dist", "loadfile", "--no-loadscope-reorder"),
)
_TESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tests without a lab", (*_PYTEST, *_SHOWN, f"--ignore={_LABS}", *_SIDE_BY_SIDE)),
    # Labs measure in real time: nothing may run beside them.
    ("tests in real labs", (*_PYTEST, *_SHOWN, _LABS)),
)
# Each lab starts five programs of this project. Without bytecode each compiles its part of it anew.
_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
_COUNT = re.compile(r"(\d+) ([a-z]+)")


def run(pytest_arguments: Sequence[str]) -> int:
    """Run every step and return 0 if all passed; with arguments, run pytest alone.

    `--long` alone is no such argument: every step is run, and the long tests too.
    """
    if pytest_arguments and list(pytest_arguments) != ["--long"]:
        return subprocess.run([*_PYTEST, *pytest_arguments], cwd=_ROOT, check=False).returncode
    print("linters, tests without a lab, tests in labs: about 20 minutes on two cores", flush=True)
    failed = []
    for name, argv in _CHECKS:
        print(f"== {name}", flush=True)
        if subprocess.run(argv, cwd=_ROOT, check=False).returncode != 0:
            failed.append(name)
    total: collections.Counter[str] = collections.Counter()
    for name, argv in _TESTS:
        print(f"== {name}", flush=True)
        status, closing = _shown([*argv, *pytest_arguments])
        if status != 0:
            failed.append(name)
        total += counts(closing)
    print(f"all tests: {', '.join(f'{total[each]} {each}' for each in total)}", flush=True)
    if failed:
        print(f"lab: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def counts(closing: str) -> collections.Counter[str]:
    """How many tests passed, failed, were skipped, ... by pytest's closing line.

    Tests that were left out, since they are long, are not counted.
    """
    words, _, _ = closing.partition(" in ")
    found = {what: int(number) for number, what in _COUNT.findall(words)}
    return collections.Counter({what: found[what] for what in found if what != "deselected"})


def _shown(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program and show what it prints; returns its status and its last line."""
    last = ""
    with subprocess.Popen(
        argv, cwd=_ROOT, env=_ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, last
