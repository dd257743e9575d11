"""Finds what the kernel and the machine lack for a run, which is *unsupported* then."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controllers import impairments
from testbed.lab.kernel import privileges
from testbed.lab.kernel.socket_defaults import LEAST_TIMEOUT
from testbed.shared.input_error import InputError
from testbed.shared.registry import did_you_mean
from testbed.training import datasets
from testbed.training.datasets import DatasetParameters
from testbed.training.datasets.packages import Package
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.net.tcp import available_congestion_controls
from testbed.workload import settings as workload
from testbed.workload.torchrun import HOOK_ENVIRONMENT, Torchrun
from topologies.settings import MOST_LAB_WORKERS

if TYPE_CHECKING:  # the lab's own process need not import it
    from testbed.experiment import Run

_ENTRY_SCRIPT = Path(__file__).resolve().parents[2] / "lab"
# Of Linux, and some that others add to theirs.
_KERNELS_CONTROLS = (
    *("reno", "cubic", "bbr", "dctcp", "bic", "cdg", "highspeed", "htcp", "hybla", "illinois"),
    *("lp", "nv", "scalable", "vegas", "veno", "westwood", "yeah"),
    *("bbr1", "bbr2", "bbr3", "bbrplus", "prague"),
)


def lacking(
    config: Mapping[str, Any], timeline: Collection[Mapping[str, Any]], hosts: Collection[str]
) -> str | None:
    """Say what this machine lacks for a run; None is nothing."""
    if "workload" in config:
        if missing := missing_program(config["workload"]["programs"], config.get("folder")):
            return missing
        controls = {program["congestion_control"] for program in config["workload"]["programs"]}
    else:
        protocol = config["protocol"]
        controls = {protocol["congestion_control"]} if protocol["carrier"] == "tcp" else set()
    section = config.get("workload") or config["transport"]
    if "tcp_rto_min_s" in section and not LEAST_TIMEOUT.exists():
        return f"tcp_rto_min_s needs Linux 6.11, and here is no {LEAST_TIMEOUT}"
    here = available_congestion_controls()
    if here and (absent := sorted(controls - {None, *here})):
        return (
            f"this kernel has no TCP congestion control {absent[0]!r}; it has {', '.join(here)}; "
            f"'modprobe tcp_{absent[0]}' as root may add it"
        )
    for entry in map(impairments.read, timeline):
        if missing := entry.lacking(hosts):
            return missing
        if entry.of_our_transport and config.get("protocol", {}).get("carrier") == "tcp":
            return f"{entry.kind}: the kernel sends the packets of TCP; only UDP arms leave any out"
    return None


def install_package(package: Package) -> None:
    """Have ./lab install what a data set reads, as all else of Debian's. InputError, in one line.

    Under `sudo` it is root who installs.
    """
    script = [str(_ENTRY_SCRIPT), "--packages", package.name]
    try:
        with privileges.regained():
            done = subprocess.run(script, stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise InputError(f"{script[0]}: {error.strerror}; {package.advice}") from None
    if done.returncode:
        (*_, why) = done.stderr.splitlines() or [f"{script[0]} failed"]
        raise InputError(f"{why.removeprefix('lab: ')}; {package.advice}")


def missing_program(programs: Sequence[Mapping[str, Any]], folder: Path | str | None) -> str | None:
    """Name the first program that this machine does not have; None where it has all."""
    for entry in programs:
        (program, *_) = workload.resolved(entry["run"])
        # With a slash it is a path, and a relative one begins in the folder.
        place = Path(folder or ".", program) if "/" in program else program
        if shutil.which(place) is None:
            return f"there is no program {program!r}, for {entry['name']} on host {entry['host']!r}"
    return None


def refuse(runs: Iterable[Run], *, simulated: bool = False) -> None:
    """Refuse runs that no lab executes, or that name what no machine has, by the file's keys."""
    for run in runs:
        in_lab = () if simulated else _beyond_labs(run)
        files = () if run.experiment.trains else _missing_files(run)
        controls = (f"{key}: {why}" for key, name in _controls(run) if (why := _unknown(name)))
        wrongs = itertools.chain(in_lab, files, controls, _refused_by_hook(run), _missing_data(run))
        if wrong := next(wrongs, ""):
            raise InputError(f"{run.source}: {wrong}" if run.source else wrong)


def _beyond_labs(run: Run) -> Iterator[str]:
    if (workers := run.experiment.topology.workers) > MOST_LAB_WORKERS:
        most = f"must be a whole number from 1 to {MOST_LAB_WORKERS} in a lab"
        yield f"topology.workers: {workers}: {most}; './lab simulate' takes more"
    if run.experiment.simulation.spray:
        flows = "simulation.spray: true: a lab's switches choose a path for each flow"
        yield f"{flows}; valid: false, or './lab simulate'"


def _missing_files(run: Run) -> Iterator[str]:
    of_arm: Mapping[str, Any] = run.experiment.arms[run.name_in_file].model_extra or {}
    for number, program in enumerate(run.programs.programs):
        if wrong := workload.wrong_file(program.run, run.folder or Path.cwd()):
            is_python = "python" in run.experiment.workload.model_fields_set
            key = "workload.python" if is_python else f"workload.programs.{number}.run"
            if "run" in of_arm.get(program.label, {}):
                key = f"arms.{run.name_in_file}.{program.label}.run"
            yield f"{key}: {wrong}"


def _refused_by_hook(run: Run) -> Iterator[str]:
    """Yield what a hook refuses of its arm, for a script that names no options itself."""
    if not isinstance(run.experiment.workload, Torchrun) or not importlib.util.find_spec("torch"):
        return
    from testbed.ddp import settings  # imports torch, which takes two seconds

    for text in {program.environment[HOOK_ENVIRONMENT] for program in run.programs.programs}:
        try:
            settings.check(text)
        except InputError as error:
            why = str(error).removeprefix(f"{HOOK_ENVIRONMENT}: ")
            yield f"arms.{run.name_in_file}: {why}"


def data_of(run: Run) -> Iterator[tuple[str, DatasetParameters]]:
    """Yield the data sets that a run reads, with the keys that name them."""
    section = run.experiment.workload
    if run.experiment.trains:
        yield "training.dataset", run.experiment.training.dataset
    for name in section.datasets if isinstance(section, Torchrun) else ():
        yield "workload.datasets", datasets.parameters(name)


def packages_to_install(runs: Iterable[Run]) -> list[Package]:
    """Return Debian's packages that `./lab run` installs for the data of these runs."""
    packages = (dataset.package for run in runs for _, dataset in data_of(run))
    needed = {p.name: p for p in packages if p is not None and p.is_to_be_installed()}
    return list(needed.values())


def _missing_data(run: Run) -> Iterator[str]:
    for key, dataset in data_of(run):
        package = dataset.package
        if package is not None and not package.is_to_be_installed() and (why := package.missing()):
            yield f"{key}: {dataset.name}: {why}"


def _controls(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the kernel's congestion controls that a run names, with their keys."""
    for number, entry in enumerate(run.experiment.impairments):
        if isinstance(name := getattr(entry, "congestion_control", None), str):
            yield f"impairments.{number}.congestion_control", name
    arm: Any = run.experiment.arms[run.name_in_file]
    # An option of the command line replaces it in arms with labels of their own.
    in_arm, of_arm = f"arms.{run.arm}", arm.model_extra or {}
    if run.experiment.trains:
        if run.protocol.carrier == "tcp":
            key = "congestion_control" if "congestion_control" in of_arm else "protocol"
            yield f"{in_arm}.{key}", run.protocol.congestion_control
        return
    for number, program in enumerate(run.programs.programs):
        if program.congestion_control is None:
            continue
        key = f"workload.programs.{number}" if arm.congestion_control is None else in_arm
        if "congestion_control" in of_arm.get(program.label, {}):
            key = f"{in_arm}.{program.label}"
        yield f"{key}.congestion_control", program.congestion_control


def _unknown(control: str) -> str:
    """Say why no kernel will have a congestion control; empty for one that some may have."""
    here = available_congestion_controls()
    if control in (*here, *_KERNELS_CONTROLS):
        return ""
    listed = ", ".join(here or _KERNELS_CONTROLS)
    if control in CONGESTION_CONTROLS:
        return f"{control!r} is of the lab's transport; valid with tcp: {listed}"
    if near := did_you_mean(control, {*here, *_KERNELS_CONTROLS}):
        return f"unknown TCP congestion control {control!r}; this kernel has {listed}{near}"
    return ""
