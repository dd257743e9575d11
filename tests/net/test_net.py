"""Virtual time is deterministic: `./lab simulate` writes the events that it wrote, digit by digit.

Compared are the numbers of `summary.json` and each column of the runs' events, for the arms, keys
and columns that both have. `python -m tests.net.test_net` renews what is kept.
"""

import gzip
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).parent / "kept"
SEEDS = {"quick": 1}
_OPTIONS = {
    "quick": ["--set", "rounds=12", "--set", "impairments.0.rounds=[4, 8]"],
}
# The command without its figures, of which nothing is kept.
_SIMULATE = """
from analysis.report import writing
from testbed.__main__ import main
writing.draw_all = lambda *_: []
main()
"""
_NO_NUMBERS = ("schema", "verdicts", "published", "settings", "cautions")
_EVENTS = ("rounds", "transfers-*", "training-*")
# Another processor must not choose other instructions, which round differently.
_LAST_DIGITS = 1e-14  # relative: numpy's logarithm, of which ratios are made, differs by processor
_ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "PRESCOTT",
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Execute an experiment in virtual time; its numbers, by path."""
    argv = [sys.executable, "-P", "-c", _SIMULATE, "simulate", name, *_OPTIONS.get(name, [])]
    environment = {**os.environ, **_ARITHMETIC}
    subprocess.run(
        [*argv, "--seeds", str(SEEDS[name]), "--out", str(folder)],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (summary_file,) = (folder / name).rglob("summary.json")
    summary = json.loads(summary_file.read_text())
    numbers = dict(_numbers({key: summary[key] for key in summary if key not in _NO_NUMBERS}))
    return {"summary": numbers, "columns": dict(_columns(folder / name))}


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and each None of nested objects with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _numbers(inner, f"{path}/{index}")
    elif not isinstance(value, str):
        yield path, value


def _columns(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield each column of the events: run/file/column, number of rows and a hash of its values."""
    for config_file in sorted(folder.glob("*/config.json")):
        config = json.loads(config_file.read_text())
        run = f"{config['arm']}/{json.dumps(config['factors'], sort_keys=True)}/{config['seed']}"
        for pattern in _EVENTS:
            for path in sorted(config_file.parent.glob(f"events/{pattern}.jsonl")):
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                for column in sorted({key for row in rows for key in row} - {"schema"}):
                    values = json.dumps([row.get(column) for row in rows], sort_keys=True)
                    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
                    yield f"{run}/{path.stem}/{column}", [len(rows), digest]


def differences(kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """It returns a line for each thing that both have and that differs."""
    lines = []
    for part in ("summary", "columns"):
        common = kept[part].keys() & now[part].keys()
        assert len(common) >= 0.8 * len(kept[part]), f"most of the net's {part} are gone"
        lines += [
            f"{path}: {kept[part][path]} became {now[part][path]}"
            for path in sorted(common)
            if not _equal(kept[part][path], now[part][path])
        ]
    return lines


def _equal(one: Any, other: Any) -> bool:
    both_floats = isinstance(one, float) and isinstance(other, float)
    return one == other or (both_floats and math.isclose(one, other, rel_tol=_LAST_DIGITS))


def _kept_file(name: str) -> Path:
    return KEPT / f"{name}.json.gz"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SEEDS)
def test_a_simulated_run_has_the_numbers_that_it_had(name, tmp_path):
    kept = json.loads(gzip.decompress(_kept_file(name).read_bytes()))
    assert not differences(kept, measure(name, tmp_path))


def test_a_number_that_changed_is_named_and_a_rounding_is_not():
    kept = {"summary": {"/a": 0.1, "/b": 0.1}, "columns": {"x/rounds/y": [3, "ab"]}}
    now = {"summary": {"/a": 0.1 + 2e-17, "/b": 0.125}, "columns": {"x/rounds/y": [3, "ac"]}}
    assert differences(kept, now) == [
        "/b: 0.1 became 0.125",
        "x/rounds/y: [3, 'ab'] became [3, 'ac']",
    ]


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for experiment in sys.argv[1:] or SEEDS:
        with tempfile.TemporaryDirectory() as scratch:
            content = json.dumps(measure(experiment, Path(scratch)), sort_keys=True)
        _kept_file(experiment).write_bytes(gzip.compress(content.encode(), mtime=0))
