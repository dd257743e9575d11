"""The commands and Python blocks of README and the tutorial, in the order in which they stand."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import stood_still
from tests.documentation import shown
from tests.documentation.shown import ROOT, Block
from tests.lab.conftest import FEW_PATHS, OF_THE_MACHINE, TIMING
from tests.lab.gates import altered

# A step is not tried again: it would find what it has left behind the first time.
pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.flaky(reruns=0)]
_LEFT_OUT = {"./lab test"}  # it is what runs this
# Runs in which nothing is new but an arm or its congestion control.
_LONG = (
    "./lab run my.yaml --set",
    "./lab run quick --arms tcp-cubic --congestion-control",
    "./lab run my_detour.yaml --arms",
)
# As shown with --long; else without runs that differ from others in the seed or the arm alone, and
# without rounds that no other command looks at. Of paths that are alike two are measured.
# Nothing else may differ: the commands after them look at the same folder of results.
_SHORTER = {
    "./lab run quick": " --seeds 1 --arms dblp"
    " --set rounds=30 --set 'impairments.0.rounds=[14, 26]'",
    "./lab run my.yaml": " --arms dblp --set 'factors={impairments.0.q: [0.9]}'",
    "./lab run my_detour.yaml": " --arms dblp",
}


@dataclass(frozen=True)
class Step:
    block: Block
    command: str = ""  # of the shell; empty: the block is a file to save, or Python to run

    def __str__(self) -> str:
        return f"{self.block}: {self.command or self.block.file or self.block.kind}"


def _steps() -> Iterator[Step]:
    seen = set(_LEFT_OUT)
    for page in shown.RUN_PAGES:
        for block in shown.blocks(page):
            if block.file:
                yield Step(block)
            elif block.not_run:
                continue
            elif block.kind == "python":
                yield Step(block)
            for command in block.commands:
                if command not in seen:
                    seen.add(command)
                    yield Step(block, command)


STEPS = list(_steps())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The reader's folder: the project as far as commands name it."""
    folder = tmp_path_factory.mktemp("reader")
    altered_by = {} if pytestconfig.getoption("--long") else FEW_PATHS
    path = altered.environment(folder / "altered", altered_by)["PYTHONPATH"]
    script = folder / "lab"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" -m testbed "$@"\n')
    script.chmod(0o755)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "tmp").mkdir()
    return folder


def _marked(step: Step) -> Any:
    marks = [pytest.mark.long] if step.command.startswith(_LONG) else []
    return pytest.param(step, id=str(step), marks=marks)


@pytest.mark.parametrize("step", [_marked(step) for step in STEPS])
def test_step(step: Step, folder: Path, pytestconfig: pytest.Config) -> None:
    if step.block.file:
        (folder / step.block.file).write_text(step.block.text, encoding="utf-8")
        return
    argv = [sys.executable, "-c", step.block.text]
    if step.command:
        shorter = "" if pytestconfig.getoption("--long") else _SHORTER.get(step.command, "")
        command = step.command.replace("/tmp/", f"{folder}/tmp/") + shorter
        argv = ["bash", "-euo", "pipefail", "-c", command]
    before, began_s = _verdicts(folder), time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    after = _verdicts(folder)
    new = [path for path in after if after[path] != before.get(path)]
    stalled = stood_still(pytestconfig, began_s)
    if done.returncode == 1 and "Traceback" not in done.stderr and _only_too_busy(new, stalled):
        return
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip() or ">" in step.command, "a command that shows nothing"


def _verdicts(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("status.json")}


def _only_too_busy(new: Iterable[Path], stalled: str) -> bool:
    """Tell whether this step's runs are ok, or invalid for want of the machine's time."""
    bad = [status for path in new if (status := json.loads(path.read_text()))["verdict"] != "ok"]
    failed = [
        {gate["key"] for gate in status["gates"] if gate["outcome"] == "failed"} for status in bad
    ]
    return (
        {status["verdict"] for status in bad} == {"invalid"}
        and all(keys <= TIMING for keys in failed)
        and (bool(stalled) or any(keys & OF_THE_MACHINE for keys in failed))
    )


def test_the_pages_show_the_way_from_the_first_run_to_own_parts() -> None:
    commands = [step.command for step in STEPS if step.command]
    assert commands[0] == "./lab run quick"
    assert set(commands) >= set(_SHORTER)
    shown_verbs = {command.split()[1] for command in commands if command.startswith("./lab ")}
    assert shown_verbs >= {"check", "plan", "run"}
    assert any(step.block.kind == "python" and not step.block.file for step in STEPS)
    assert [step.block.file for step in STEPS if step.block.file]
