"""Options of the command line; a dataclass of options is one parameter of a verb."""

import dataclasses
import functools
import inspect
import shlex
import tempfile
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.shared.input_error import InputError
from testbed.shared.run_directory import PLAN, RESULTS, is_name

Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="an experiment's name, its YAML file, or the folder of its results",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="folder of all results")]
What = Annotated[
    str | None,
    typer.Argument(metavar="WHAT", help="an experiment's name, its YAML file, or a folder"),
]


def _require_writable(parameter: typer.CallbackParam, file: Path | None) -> Path | None:
    if file is None:
        return None
    option = f"{parameter.opts[-1]} {file}"
    if file.is_dir():
        raise InputError(f"{option}: is a folder; expected a file")
    try:
        # The file is replaced in the end, or a link's target.
        with tempfile.NamedTemporaryFile(dir=file.resolve().parent, prefix=".lab-"):
            pass
    except OSError as error:
        raise InputError(f"{option}: cannot be written: {error.strerror}") from None
    return file


def output_file(*names: str, help: str) -> Any:
    """An option for a file that a verb writes; refused where it cannot, before the verb begins."""
    return typer.Option(*names, metavar="FILE", help=help, callback=_require_writable)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Options that select runs of an experiment, and change them."""

    name: Name
    arms: Annotated[str | None, typer.Option("--arms", help="only these arms: a,b")] = None
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, max=10_000, help="use so many seeds")
    ] = None
    congestion_control: Annotated[
        str | None, typer.Option("--congestion-control", help="swap the arms' congestion control")
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="sizes for another machine; ./lab list names an experiment's"
        ),
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="replace a value: key.path=value (repeatable)")
    ] = None

    def require(self, results: Path) -> None:
        """Raise InputError for what is no YAML, before a verb imports what checks a file."""
        from testbed import experiment
        from testbed.shared import yaml_input

        if not self.name:
            raise InputError("EXPERIMENT is empty; valid: its name, FILE.yaml, a folder")
        if not self.is_folder(results):
            yaml_input.read(experiment.find(self.name))

    def is_folder(self, results: Path) -> bool:
        """Tell whether the name is a folder of results, or an own experiment's name in them."""
        from testbed import experiment

        is_planned = is_name(self.name) and (results / self.name / PLAN).is_file()
        return self.name not in experiment.names() and (Path(self.name).is_dir() or is_planned)

    def loaded(self) -> list[Any]:
        from testbed import experiment

        return experiment.load(self.name, **self._changes())

    def resolved(self) -> dict[str, Any]:
        """Return the experiment with all options and defaults, as a file would have it."""
        from testbed import experiment

        return experiment.resolved(self.name, **self._changes())

    def _changes(self) -> dict[str, Any]:
        from testbed.experiment.files import DEFAULT_PROFILE

        return {
            "overrides": self.settings or (),
            "arms": names_in(self.arms, "--arms"),
            "seeds": self.seeds,
            "congestion_control": self.congestion_control,
            "profile": self.profile or DEFAULT_PROFILE,
        }


@dataclass(frozen=True, kw_only=True)
class Sweep(Selection):
    """A selection, and the folder of its results."""

    out: Out = RESULTS

    def stored(self) -> dict[str, Any]:
        """Return what a plan keeps, to select its runs again; a file by its whole path."""
        path = Path(self.name)
        name = str(path.resolve()) if path.suffix in (".yaml", ".yml") else self.name
        return {key: getattr(self, key) for key in STORED} | {"name": name}


STORED = tuple(field.name for field in dataclasses.fields(Selection))


@dataclass(frozen=True, kw_only=True)
class Execution(Sweep):
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries",
            min=0,
            help="try a run again that is invalid, so many times (2); not with --scheduler",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="ADDRESS", help="share it out with Dask: tls://HOST:8786"
        ),
    ] = None
    anew: Annotated[
        bool,
        typer.Option("--anew", help="execute also what is ok already; it is kept as an attempt"),
    ] = False


@dataclass(frozen=True, kw_only=True)
class LabExecution(Execution):
    pcap: Annotated[
        str | None,
        typer.Option(
            "--pcap",
            metavar="[HOSTS]",
            help="record these hosts' links (worker-1,server; without HOSTS: server) into pcap/",
        ),
    ] = None


def names_in(text: str | None, option: str) -> list[str]:
    """Split an option's value, `a,b` or `a, b`, into names, each once; None has none."""
    # A comma between options of a changed arm's setting parts no names: in `a,b@repair=x:c=1,d=2`
    # what follows the last one has a `=` and no `@`.
    names: list[str] = []
    for piece in [] if text is None else [piece.strip() for piece in text.split(",")]:
        if not piece:
            words = shlex.join([option, text or ""])
            raise InputError(f"{words}: an empty name; valid: for example a or a,b")
        key, equals, _ = piece.partition("=")
        if names and equals and "@" not in key and "@" in names[-1]:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    return list(dict.fromkeys(names))


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take a dataclass of options as one parameter; typer knows no groups."""
    hints = typing.get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        options = [parameter]
        if name in groups:
            options = list(inspect.signature(groups[name]).parameters.values())
        types = typing.get_type_hints(groups.get(name, verb), include_extras=True)
        parameters += [
            option.replace(kind=option.KEYWORD_ONLY, annotation=types[option.name])
            for option in options
        ]

    @functools.wraps(verb)
    def with_groups(**options: Any) -> None:
        for name, kind in groups.items():
            fields = [field.name for field in dataclasses.fields(kind)]
            group = options[name] = kind(**{field: options.pop(field) for field in fields})
            if isinstance(group, Selection):
                group.require(group.out if isinstance(group, Sweep) else RESULTS)
        verb(**options)

    with_groups.__annotations__ = {option.name: option.annotation for option in parameters}
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups
