"""The YAML section `workload` for programs on hosts, and what an arm changes in them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from testbed.shared import problems
from testbed.shared.problems import Problem, Section, form, optional
from testbed.shared.registry import one_of

# What a text says literally, and outside of that what only a shell understands: pipes,
# redirections, and what separates programs. An address may hold a single &.
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_OF_SHELLS = re.compile(r"[|<>;]+|&(?:[&>]|(?=\s|$))")
LAB_PYTHON = "lab-python"
TARGET = "accuracy or perplexity that a program records; reports say when it is reached"
TCP_RTO_MIN_S: Any = optional(
    "the least time after which the hosts' kernel TCP sends again; its windows then stay over idle "
    "times; none: Linux' 0.2 s",
    ge=0.001,
    le=10,
    # Without it, runs have the keys that they had before there was this key.
    exclude_if=lambda value: value is None,
)
_PYTHON = re.compile(r"python[0-9.]*|lab-python")
_AFTER_TIMEOUT_S = 30.0
# Their logs and samples have these names already.
_TAKEN = (
    *("controller", "ovs-vswitchd", "ovsdb-server", "delay-relay", "supervisor", "sampler"),
    "training",
)


def _words(value: Any) -> Any:
    """Divide a text into arguments as a shell would, without one."""
    if isinstance(value, str):
        words = shlex.split(value)
        if operator := _OF_SHELLS.search(_QUOTED.sub("", value)):
            raise ValueError(
                f"no shell reads this, so {operator[0]!r} would be an argument; valid: one "
                'program, quotes around an argument, or a list such as [sh, -c, "..."]'
            )
        return words
    return value


def _command(value: Any) -> Any:
    value = _words(value)
    if not isinstance(value, list):
        raise ValueError("must be a program and its arguments, as a text or a list of texts")
    if not value or not str(value[0]).strip():
        raise ValueError("is empty; valid: a program and its arguments")
    return value


def _texts(least: int) -> WithJsonSchema:
    texts = {"type": "array", "items": {"type": "string"}, "minItems": least}
    return WithJsonSchema({"anyOf": [texts, {"type": "string"}]})


Word = Annotated[str, Field(max_length=10_000)]
Arguments = Annotated[list[Word], BeforeValidator(_words), _texts(0)]
Command = Annotated[list[Word], BeforeValidator(_command), _texts(1)]
Name = Annotated[
    str,
    form(r"^[a-z0-9][a-z0-9-]{0,63}$", "names of up to 64 lower-case letters, digits and hyphens"),
]
CongestionControl = Annotated[str, form(r"^\w{1,15}$", "a name that the kernel knows, as cubic")]
Port = Annotated[int, Field(ge=1, le=65535)]
Variable = Annotated[str, form(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", "names of variables, as DEBUG")]


class Program(Section):
    """A program on a host. It ends with status 0, or the run has failed."""

    host: str = Field(description="the host that it runs on")
    run: Command = Field(
        description="the program and its arguments: a list, or a text that is divided at spaces, "
        "with quotes; no shell reads it. Names of hosts resolve, and the experiment's folder is "
        "the current one"
    )
    name: Name | None = optional("names it in logs and tables; none: the host's name")
    after: str | None = optional(
        "the name of a program above that must listen (on TCP or UDP) or have ended first"
    )
    after_timeout_s: float = Field(
        default=_AFTER_TIMEOUT_S,
        gt=0,
        le=1e6,
        description="the longest wait for that one, from its start; beyond it the run has failed",
    )
    service: bool = Field(
        default=False, description="it is ended when all that are no service have ended"
    )
    time_limit_s: float | None = optional(
        "the longest time that it may take; none: `limits.run_timeout_s` alone", gt=0, le=1e6
    )
    congestion_control: CongestionControl | None = optional(
        "of all TCP connections of its host, whatever they ask for; none: what the "
        "program asks for, else the kernel's default"
    )
    output: Annotated[
        str | None,
        form(
            r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            "names of files: letters, digits, full stops, hyphens and underscores",
        ),
    ] = optional("the file in `output/` that gets its standard output; none: its log")

    may_be_killed: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="by an impairment, such as `crash`: the others then go on without it, and the "
        "run's remark names it",
    )
    environment: dict[Variable, Word] = Field(
        default={}, description="variables of its environment, beside those of `./lab`"
    )

    @property
    def label(self) -> str:
        return self.name or self.host


class BuiltIn(Section):
    """The built-in training; `training` and `arms` say more."""

    kind: Literal["training"] = "training"


class Programs(Section):
    """Programs of your own, in place of the built-in training."""

    kind: Literal["programs"] = "programs"
    programs: list[Program] = Field(min_length=1, description="in the order of their starts")
    data_ports: tuple[Port, Port] | None = optional(
        "`[first, last]` of the ports that carry data: losses hit these alone, and "
        "TCP connections on these are sampled; none: all ports"
    )
    target: float | None = optional(TARGET, gt=0)
    tcp_rto_min_s: float | None = TCP_RTO_MIN_S

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(program.host for program in self.programs))

    @model_validator(mode="after")
    def _fits_together(self) -> Programs:
        wrong = [*self._wrong_programs()]
        if all(program.service for program in self.programs):
            words = "all are services, so nothing would ever end; valid: at least one that is none"
            wrong.append(Problem(("programs",), words))
        if self.data_ports is not None and self.data_ports[0] > self.data_ports[1]:
            first, last = self.data_ports
            wrong.append(Problem(("data_ports",), f"[{first}, {last}]: valid: the lower one first"))
        if wrong:
            raise problems.raised(wrong)
        return self

    def _wrong_programs(self) -> Iterator[Problem]:
        """Yield what programs do not have together: names, outputs, order, congestion controls."""
        labels, outputs = list[str](), list[str | None]()
        controls: dict[str, tuple[int, str]] = {}  # by host
        for number, program in enumerate(self.programs):
            label, output, after = program.label, program.output, program.after
            control, reasons = program.congestion_control, dict[str, str]()
            if label in labels:
                first = labels.index(label)
                reasons["name"] = (
                    f"{label!r} is taken by programs.{first}; give them distinct names"
                )
            elif label in _TAKEN:
                key = "host" if program.name is None else "name"
                reasons[key] = f"{label!r}: a part of the lab has this name; valid: another"
            if program.service and program.time_limit_s is not None:
                reasons["time_limit_s"] = (
                    "has no meaning for a service, which ends with the others; valid: none"
                )
            if after is None and program.after_timeout_s != _AFTER_TIMEOUT_S:
                reasons["after_timeout_s"] = "has no meaning without after; valid: none"
            if output is not None and output in outputs:
                reasons["output"] = f"{output!r}: programs.{outputs.index(output)} writes it, too"
            if after is not None and after not in labels:
                reasons["after"] = f"no program {after!r} stands above; {one_of(after, labels)}"
            if control is not None:
                first, other = controls.setdefault(program.host, (number, control))
                if other != control:
                    reasons["congestion_control"] = (
                        f"{control!r}: programs.{first} sets {other!r} for host {program.host!r}, "
                        "and a host has one; valid: the same, or let the programs choose by "
                        "arguments of their own"
                    )
            labels.append(label)
            outputs.append(output)
            yield from (Problem(("programs", number, key), why) for key, why in reasons.items())

    def unknown_hosts(self, hosts: Sequence[str]) -> list[Problem]:
        unknown = ((n, p.host) for n, p in enumerate(self.programs) if p.host not in hosts)
        return [
            Problem(("programs", number, "host"), f"unknown host {host!r}; {one_of(host, hosts)}")
            for number, host in unknown
        ]

    def files(self, folder: Path) -> list[str]:
        """Return the files beside the experiment that commands name, by their whole paths."""
        words = dict.fromkeys(word for program in self.programs for word in program.run)
        # A word may be anything, such as a text that is too long for a name: that is no file.
        named = [(folder / word).resolve() for word in words if os.path.isfile(folder / word)]  # noqa: PTH113
        return [str(place) for place in named if place.is_relative_to(folder.resolve())]


class AnyArm(BaseModel):
    """One of the variants that an experiment compares; the workload says which keys it has."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ProgramsArm(AnyArm):
    """The changes of an arm: keys of single programs, by name, or of all at once."""

    congestion_control: CongestionControl | None = optional("of every program")

    def applied(self, workload: Programs) -> Programs:
        """Return the workload of this arm; ValidationError, whose places begin below the arm."""
        changes: Mapping[str, Any] = self.model_extra or {}
        labels = [program.label for program in workload.programs]
        for name, keys in changes.items():
            if name not in labels:
                words = f"unknown key; {one_of(name, ['congestion_control', *labels])}"
                raise problems.raised([Problem((name,), words, problems.UNKNOWN)])
            if not isinstance(keys, Mapping):
                words = "must be a mapping of a program's keys to values"
                raise problems.raised([Problem((name,), words)])
        document = workload.model_dump(mode="json")
        for program, label in zip(document["programs"], labels, strict=True):
            program["name"] = label
            if self.congestion_control is not None:
                program["congestion_control"] = self.congestion_control
            program.update(changes.get(label, {}))
        try:
            return Programs.model_validate(document)
        except ValidationError as error:
            raise problems.raised(
                [self._placed(problem, labels) for problem in problems.of(error, Programs)]
            ) from None

    def _placed(self, problem: Problem, labels: Sequence[str]) -> Problem:
        place = problem.place
        if len(place) > 1 and place[0] == "programs" and isinstance(place[1], int):
            place = (labels[place[1]], *place[2:])
        return problem._replace(place=place)


def wrong_file(command: Sequence[str], folder: Path) -> str:
    """Say what is wrong with a command's files; empty where nothing can be known."""
    program, *arguments = command
    if "/" in program:
        if missing := _missing(program, folder):
            return missing
        if os.path.isdir(folder / program) or not os.access(folder / program, os.X_OK):  # noqa: PTH112
            return f"{program!r}: is no executable file; valid: 'chmod +x' it, or [python3, FILE]"
    script = next((argument for argument in arguments if not argument.startswith("-")), "")
    is_script = _PYTHON.fullmatch(Path(program).name) and script.endswith(".py")
    return _missing(script, folder) if is_script else ""


def _missing(name: str, folder: Path) -> str:
    # A word may be too long for a name: that is no file.
    if os.path.exists(folder / name):  # noqa: PTH110
        return ""
    return f"{name!r}: no such file; looked in {folder}"


def resolved(command: Sequence[str]) -> list[str]:
    """Return a command with the path of the lab's Python, which no configuration holds."""
    program, *arguments = command
    return [sys.executable if program == LAB_PYTHON else program, *arguments]
