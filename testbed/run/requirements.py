"""What a run needs of the kernel and the machine, beyond what every run needs.

A plan says what is lacking; the run itself then ends as *unsupported*, before anything is built.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controllers import impairments
from testbed.shared.input_error import InputError
from testbed.transport.net.tcp_socket import available_congestion_controls
from testbed.workload import command_files, interpreter

if TYPE_CHECKING:  # the lab's own process need not import it
    from testbed.experiment import Run

_MODULES = Path("/lib/modules")


def lacking(
    config: Mapping[str, Any], timeline: Collection[Mapping[str, Any]], hosts: Collection[str]
) -> str | None:
    """What is lacking for a run, in words; None: nothing.

    Args:
        config: the run's `protocol` or `workload`, and its `folder`, as in `config.json`.
        timeline: the impairments, as in `config.json`.
        hosts: the names of all hosts.
    """
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


def refuse_missing_files(runs: Iterable[Run]) -> None:
    """Refuse runs whose programs are given by paths where nothing is that could be executed.

    Raises:
        InputError: one line with the experiment's file, the key and the value.
    """
    for run in runs:
        if run.experiment.trains:
            continue
        of_arm: Mapping[str, Any] = run.experiment.arms[run.name_in_file].model_extra or {}
        for number, each in enumerate(run.programs.programs):
            if said := command_files.wrong(each.run, run.folder or Path.cwd()):
                key = f"workload.programs.{number}.run"
                if "python" in (run.experiment.workload.model_fields_set):
                    key = "workload.python"
                if "run" in of_arm.get(each.label, {}):
                    key = f"arms.{run.name_in_file}.{each.label}.run"
                raise InputError(": ".join(filter(None, (str(run.source or ""), key, said))))


def missing_program(programs: Sequence[Mapping[str, Any]], folder: Path | str | None) -> str | None:
    """The first program that this machine does not have, with its host; None: it has all.

    Args:
        programs: of a workload, as in `config.json`.
        folder: in which they run.
    """
    for each in programs:
        (program, *_) = interpreter.resolved(each["run"])
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
    modules = _MODULES / platform.release()
    if next(modules.rglob(f"tcp_{wanted}.ko*"), None) is not None:
        said += f"; 'modprobe tcp_{wanted}' as root adds it"
    return said
