"""`python -m testbed.cluster.block DIR`: executes runs on a worker's machine, as its own process.

A JSON object on standard input says which. Each run's directory lies in DIR afterwards. What this
machine cannot do is one line on standard error and exit status 2, before anything is executed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import topologies
from testbed.cluster import worker
from testbed.machine import capabilities
from testbed.run import manifest, requirements, runner
from testbed.shared import own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RunDirectory
from testbed.training import prerequisites
from testbed.training.settings import Training


def task(configs: list[dict[str, Any]], capture: list[str]) -> str:
    """What `main` reads: the configurations, for this machine's own version of the lab."""
    code = {"commit": manifest.commit(), "code": manifest.code_sha256()}
    return json.dumps({**code, "runs": configs, "capture": capture})


def main() -> int:
    """Execute the runs of a task; returns the exit status."""
    folder, wanted = Path(sys.argv[1]), json.load(sys.stdin)
    forget_dead(folder.parent)
    try:
        _require_same_code(wanted)
        for config in wanted["runs"]:
            run_directory.require_name(config["key"], "the sweep's runs: key")
            _require(config)
        for config in wanted["runs"]:
            place = RunDirectory(folder / config["key"])
            if config.get("simulated"):
                from testbed.run import simulating  # imports torch, which a lab need not

                simulating.carry_out(place, config, lambda record: None)
            else:
                capture = {"capture": wanted["capture"]}
                with turn():
                    runner.carry_out(place, config | capture, lambda record: None)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@contextmanager
def turn(place: str = "/") -> Iterator[None]:
    """Wait until no other process of this machine has a lab; one that dies gives its turn back."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def forget_dead(place: Path) -> None:
    """Remove the folders of workers that were killed."""
    for folder in place.glob(f"{worker.FOLDER}*-*"):
        pid = folder.name.removeprefix(worker.FOLDER).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _require_same_code(wanted: Mapping[str, Any]) -> None:
    here, there = manifest.commit(), wanted["commit"]
    if (here, manifest.code_sha256()) != (there, wanted["code"]):
        how = "" if here != there else ", with other files"
        raise InputError(f"has commit {_short(here)}{how}, and this sweep is of {_short(there)}")


def _short(commit: str | None) -> str:
    return "unknown" if commit is None else commit[:10] + commit[40:]


def _require(config: Mapping[str, Any]) -> None:
    """Raise InputError for what this machine lacks for a run."""
    own_code.expect(config.get("code", {}))
    if not config.get("simulated"):
        capabilities.require()
    if "workload" not in config:
        _require_data(config)
    elif missing := requirements.missing_program(
        config["workload"]["programs"], config.get("folder")
    ):
        raise InputError(f"workload.programs: {missing}")


def _require_data(config: Mapping[str, Any]) -> None:
    """Fetch and check what a run trains."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which was left out: LAB_TORCH=1 ./lab check")
    training = Training.model_validate(config["training"])
    folder = config.get("folder")
    need = prerequisites.Need(
        model=training.model,
        dataset=training.dataset,
        split=training.split,
        batch_size=training.batch_size,
        workers=len(topologies.parse(config["topology"]).host_names()) - 1,
        seed=int(config["seed"]),
        folder=None if folder is None else Path(folder),
        device=training.device,
        validates=training.evaluate_on == "validation",
        computes=training.pace.kind != "payload-only",
    )
    prerequisites.prepare([need], lambda name, done, total: None)


if __name__ == "__main__":
    sys.exit(main())
