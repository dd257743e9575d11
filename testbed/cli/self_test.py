"""`./lab test`: linters, import contracts, unit tests, then tests in real namespaces."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LINT_IMPORTS = str(Path(sys.executable).with_name("lint-imports"))
_PYTEST = (sys.executable, "-m", "pytest")
_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ruff: rules", (sys.executable, "-m", "ruff", "check", ".")),
    ("ruff: format", (sys.executable, "-m", "ruff", "format", "--check", ".")),
    ("mypy", (sys.executable, "-m", "mypy")),
    ("import contracts", (_LINT_IMPORTS, "--no-logo", "--no-cache")),
    # One call, so that the closing line counts everything; seconds-long tests come first.
    ("tests", (*_PYTEST, "-q", "--durations=8")),
)


def run(pytest_arguments: Sequence[str]) -> int:
    """Run every step and return 0 if all passed; with arguments, run pytest alone.

    `--long` alone is no such argument: every step is run, and the long tests too.
    """
    if pytest_arguments and list(pytest_arguments) != ["--long"]:
        return subprocess.run([*_PYTEST, *pytest_arguments], cwd=_ROOT, check=False).returncode
    failed = []
    for name, argv in _STEPS:
        print(f"== {name}", flush=True)
        more = pytest_arguments if name == "tests" else ()
        if subprocess.run([*argv, *more], cwd=_ROOT, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"lab: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
