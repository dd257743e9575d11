"""Experiments by name or path, and what their files say without being checked, which is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiment import factors, profiles
from testbed.shared import yaml_input
from testbed.shared.input_error import InputError
from testbed.shared.registry import did_you_mean

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """An experiment that comes with the project: its runs, its profiles, and what it shows."""

    name: str
    runs: int
    profiles: list[str]
    description: str


def summary(name: str) -> Summary:
    """What `./lab list` says of an experiment."""
    document = yaml_input.read(find(name))
    profiles.apply(document, profiles.DEFAULT_PROFILE)
    give_arm(document)
    points = list(factors.points(document.get("factors") or {}))
    return Summary(
        name=name,
        runs=len(document["arms"]) * len(points) * len(document["seeds"]),
        profiles=profiles.names(document),
        description=document.get("description", ""),
    )


def give_arm(document: dict[str, Any]) -> None:
    """Give programs that are compared with nothing the one arm that an experiment must have."""
    workload = document.get("workload")
    if isinstance(workload, Mapping) and workload.get("kind") in ("programs", "torchrun"):
        document.setdefault("arms", {workload["kind"]: {}})


def find(name_or_path: str) -> Path:
    """The YAML file of an experiment's name or path."""
    path = Path(name_or_path)
    if path.suffix in yaml_input.SUFFIXES:
        if not path.is_file():
            near = "" if path.parent.parts else did_you_mean(path.stem, names())
            for other in map(path.with_suffix, yaml_input.SUFFIXES):
                if other.is_file():
                    near = f"; did you mean {str(other)!r}?"
            what = "not a file" if path.exists() else "no such file"
            if path.is_symlink() and not path.exists():
                what, near = "a symbolic link that leads to no file", ""
            raise InputError(f"{path}: {what}{near}")
        return path
    if path.is_file():
        raise InputError(f"{path}: not a YAML file; valid: FILE.yaml, FILE.yml")
    found = EXPERIMENTS / f"{name_or_path}.yaml"
    if "/" in name_or_path or not found.is_file():
        near = did_you_mean(path.name, names())
        raise InputError(
            f"unknown experiment {name_or_path!r}; valid: {', '.join(names())}, FILE.yaml{near}"
        )
    here = Path.cwd()
    return found.relative_to(here) if found.is_relative_to(here) else found


def profile_names(name_or_path: str) -> list[str]:
    """The profiles of an experiment, the default one first."""
    return profiles.names(yaml_input.read(find(name_or_path)))


def names() -> list[str]:
    """The experiments that come with the project."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))
