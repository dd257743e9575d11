"""`python -m testbed.cluster.block DIR`: executes runs on a worker's machine, as its own process.

A JSON object on standard input says which. Each run's directory lies in DIR afterwards. What this
machine cannot do is one line on standard error and exit status 2, before anything is executed.
The directories go as bytes: packed on a worker's machine, unpacked here without trust in them.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import topologies
from testbed.cluster import worker
from testbed.experiment import Run
from testbed.lab.kernel import privileges
from testbed.machine import capabilities
from testbed.run import manifest, requirements, runner
from testbed.run.runner import Outcome
from testbed.shared import own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RunDirectory
from testbed.training import prerequisites
from testbed.training.settings import Training


def task(configs: list[dict[str, Any]], capture: list[str]) -> str:
    """Write what `main` reads: the configurations, for this machine's version of the lab."""
    code = {"commit": manifest.commit(), "code": manifest.code_sha256()}
    return json.dumps({**code, "runs": configs, "capture": capture})


def main() -> int:
    folder, task = Path(sys.argv[1]), json.load(sys.stdin)
    worker.remove_abandoned(folder.parent)
    try:
        _require_same_code(task)
        for config in task["runs"]:
            run_directory.require_name(config["key"], "the sweep's runs: key")
            _require(config)
        for config in task["runs"]:
            place = RunDirectory(folder / config["key"])
            if config.get("simulated"):
                from testbed.run import simulating  # imports torch, which a lab need not

                simulating.carry_out(place, config, lambda record: None)
            else:
                capture = {"capture": task["capture"]}
                with worker.exclusive_lab():
                    runner.carry_out(place, config | capture, lambda record: None)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _require_same_code(task: Mapping[str, Any]) -> None:
    here, there = manifest.commit(), task["commit"]
    if (here, manifest.code_sha256()) != (there, task["code"]):
        how = "" if here != there else ", with other files"
        raise InputError(f"has commit {_short(here)}{how}, and this sweep is of {_short(there)}")


def _short(commit: str | None) -> str:
    return "unknown" if commit is None else commit[:10] + commit[40:]


def _require(config: Mapping[str, Any]) -> None:
    """Raise InputError for what this machine lacks for a run."""
    own_code.expect(config.get("code", {}))
    if not config.get("simulated"):
        capabilities.require()
    folder = config.get("folder")
    if "workload" in config:
        if missing := requirements.missing_program(config["workload"]["programs"], folder):
            raise InputError(f"workload.programs: {missing}")
        return
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which was left out: LAB_TORCH=1 ./lab check")
    need = prerequisites.Need(
        Training.model_validate(config["training"]),
        hosts=len(topologies.parse(config["topology"]).host_names()),
        seed=int(config["seed"]),
        folder=Path(folder) if folder else None,
    )
    prerequisites.prepare([need], lambda name, done, total: None)


# Errors of this machine's disk, whoever sent what is written.
_OF_THIS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_MOST_UNPACKED_BYTES = 4 << 30


def unpack(packed: bytes, folder: Path, names: Collection[str]) -> None:
    """Write what a worker packed into an empty folder; ValueError for all but files in `names`."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            left_bytes = _MOST_UNPACKED_BYTES
            for member in archive:
                left_bytes -= member.size
                parts = PurePosixPath(member.name).parts
                path = folder.joinpath(*parts)
                expected = bool(parts) and parts[0] in names and ".." not in parts
                content = archive.extractfile(member) if member.isreg() and expected else None
                if content is None or path.exists() or left_bytes < 0:
                    raise ValueError(f"{member.name!r} is no file of these runs")
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THIS_DISK:
            raise
        raise ValueError(f"no archive of runs: {error}") from None


def store(folder: Path, runs: Sequence[Run], packed: bytes) -> list[Outcome]:
    """Put runs' folders in their place, earlier attempts beside them; ValueError if not theirs."""
    runner.require_space(folder, runs[0])
    place = folder / runs[0].experiment.name
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=place) as incoming:
        unpack(packed, Path(incoming), {run.key for run in runs})
        for run in runs:
            config = run_directory.read_or_empty(Path(incoming, run.key, "config.json"))
            status = run_directory.read_or_empty(Path(incoming, run.key, "status.json"))
            if config.get("key") != run.key or status.get("verdict") not in run_directory.VERDICTS:
                raise ValueError(f"{run.key} is missing, or has no verdict")
        for run in runs:
            directory = runner.directory_of(folder, run)
            directory.accept(Path(incoming, run.key))
            privileges.hand_over_below(directory.path)
    return [runner.outcome(run, runner.directory_of(folder, run)) for run in runs]


if __name__ == "__main__":
    sys.exit(main())
