"""What a run needs of the kernel and the machine; without it the run ends as *unsupported*."""

from __future__ import annotations

import itertools
import platform
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controllers import impairments
from testbed.shared.input_error import InputError
from testbed.shared.registry import did_you_mean
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.net.tcp import available_congestion_controls
from testbed.workload import commands
from topologies.settings import MOST_LAB_WORKERS

if TYPE_CHECKING:  # the lab's own process need not import it
    from testbed.experiment import Run

_MODULES = Path("/lib/modules")
# Of Linux, and some that others add to theirs.
_KERNELS_CONTROLS = (
    *("reno", "cubic", "bbr", "dctcp", "bic", "cdg", "highspeed", "htcp", "hybla", "illinois"),
    *("lp", "nv", "scalable", "vegas", "veno", "westwood", "yeah"),
    *("bbr1", "bbr2", "bbr3", "bbrplus", "prague"),
)


def lacking(
    config: Mapping[str, Any], timeline: Collection[Mapping[str, Any]], hosts: Collection[str]
) -> str | None:
    """What is lacking for a run, in words; None: nothing."""
    if "workload" in config:
        if missing := missing_program(config["workload"]["programs"], config.get("folder")):
            return missing
        wanted = {each["congestion_control"] for each in config["workload"]["programs"]} - {None}
    else:
        protocol = config["protocol"]
        wanted = {protocol["congestion_control"]} if protocol["carrier"] == "tcp" else set()
    for each in sorted(wanted):
        if missing := _congestion_control(each):
            return missing
    for entry in map(impairments.read, timeline):
        if missing := entry.lacking(hosts):
            return missing
        if entry.of_our_transport and config.get("protocol", {}).get("carrier") == "tcp":
            return f"{entry.kind}: the kernel sends the packets of TCP; only UDP arms leave any out"
    return None


def refuse(runs: Iterable[Run], *, simulated: bool = False) -> None:
    """Refuse runs that no lab executes, or that name what no machine has, by the file's keys."""
    for run in runs:
        in_lab = () if simulated else _beyond_labs(run)
        of_kind = () if run.experiment.trains else _missing_files(run)
        controls = (
            f"{key}: {why}" for key, name in _controls(run) if (why := _wrong_control(name))
        )
        if wrong := next(itertools.chain(in_lab, of_kind, controls), ""):
            raise InputError(f"{run.source}: {wrong}" if run.source else wrong)


def _beyond_labs(run: Run) -> Iterator[str]:
    """More workers than a lab has room for, and a path for each datagram."""
    if (workers := run.experiment.topology.workers) > MOST_LAB_WORKERS:
        most = f"must be a whole number from 1 to {MOST_LAB_WORKERS} in a lab"
        yield f"topology.workers: {workers}: {most}; './lab simulate' takes more"
    if run.experiment.simulation.spray:
        flows = "simulation.spray: true: a lab's switches choose a path for each flow"
        yield f"{flows}; valid: false, or './lab simulate'"


def _missing_files(run: Run) -> Iterator[str]:
    """Programs that are given by paths where nothing is that could be executed."""
    folder = run.folder or Path.cwd()
    of_arm: Mapping[str, Any] = run.experiment.arms[run.name_in_file].model_extra or {}
    for number, program in enumerate(run.programs.programs):
        if wrong := commands.wrong(program.run, folder):
            key = f"workload.programs.{number}.run"
            if "python" in run.experiment.workload.model_fields_set:
                key = "workload.python"
            if "run" in of_arm.get(program.label, {}):
                key = f"arms.{run.name_in_file}.{program.label}.run"
            yield f"{key}: {wrong}"


def _controls(run: Run) -> Iterator[tuple[str, str]]:
    """The kernel's congestion controls that a run names, by their keys."""
    found = run.experiment
    for number, entry in enumerate(found.impairments):
        if isinstance(name := getattr(entry, "congestion_control", None), str):
            yield f"impairments.{number}.congestion_control", name
    arm: Any = found.arms[run.name_in_file]
    # An option of the command line replaces it in arms with labels of their own.
    place, of_arm = f"arms.{run.arm}", arm.model_extra or {}
    if found.trains:
        if run.protocol.carrier == "tcp":
            key = "congestion_control" if "congestion_control" in of_arm else "protocol"
            yield f"{place}.{key}", run.protocol.congestion_control
        return
    for number, program in enumerate(run.programs.programs):
        if program.congestion_control is None:
            continue
        key = f"workload.programs.{number}"
        if arm.congestion_control is not None:
            key = place
        if "congestion_control" in of_arm.get(program.label, {}):
            key = f"{place}.{program.label}"
        yield f"{key}.congestion_control", program.congestion_control


def _wrong_control(name: str) -> str:
    """Why no kernel will have a congestion control; empty for one that some may have."""
    here = available_congestion_controls()
    if name in (*here, *_KERNELS_CONTROLS) or _module(name):
        return ""
    listed = ", ".join(here or _KERNELS_CONTROLS)
    if name in CONGESTION_CONTROLS:
        return f"{name!r} is of the lab's transport; valid with tcp: {listed}"
    near = did_you_mean(name, {*here, *_KERNELS_CONTROLS})
    return f"unknown TCP congestion control {name!r}; this kernel has {listed}{near}" * bool(near)


def missing_program(programs: Sequence[Mapping[str, Any]], folder: Path | str | None) -> str | None:
    """The first program that this machine does not have, with its host; None: it has all."""
    for each in programs:
        (program, *_) = commands.resolved(each["run"])
        # With a slash it is a path, and a relative one begins in the folder.
        place = Path(folder or ".", program) if "/" in program else program
        if shutil.which(place) is None:
            return f"there is no program {program!r}, for {each['name']} on host {each['host']!r}"
    return None


def _congestion_control(wanted: str) -> str | None:
    listed = available_congestion_controls()
    if not listed or wanted in listed:
        return None
    said = f"this kernel has no TCP congestion control {wanted!r}; it has {', '.join(listed)}"
    if _module(wanted):
        said += f"; 'modprobe tcp_{wanted}' as root adds it"
    return said


def _module(control: str) -> bool:
    """Whether this kernel could load a congestion control."""
    # As a whole name: what a person wrote may hold a pattern, or a slash.
    files = (_MODULES / platform.release()).rglob("tcp_*.ko*")
    return any(file.name.partition(".ko")[0] == f"tcp_{control}" for file in files)
