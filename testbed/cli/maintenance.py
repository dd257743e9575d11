"""The verbs `new`, `docs`, `test` and `clean`: own files, the site, checks, what runs left."""

import functools
import importlib.util
import keyword
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from testbed.cli import places
from testbed.machine import clean as leftovers
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

_ROOT = Path(__file__).resolve().parents[2]
SITE = _ROOT / "site"
_PYTEST = (sys.executable, "-m", "pytest")
_SHOWN = ("-q", "--durations=12", "--rerun-show-tracebacks")
# A file's tests stay in one process, since they share what is costly to make; tests/conftest.py
# says which begin first.
_SIDE_BY_SIDE = (
    *("-n", str(min(8, os.cpu_count() or 1))),
    *("--dist", "loadfile", "--no-loadscope-reorder"),
)
_STEPS: dict[str, tuple[str, ...]] = {
    "ruff: rules": (sys.executable, "-m", "ruff", "check", "."),
    "ruff: format": (sys.executable, "-m", "ruff", "format", "--check", "."),
    "spelling": (sys.executable, "-m", "codespell_lib"),
    "mypy": (sys.executable, "-m", "mypy", "--num-workers", "auto"),
    "import contracts": (
        str(Path(sys.executable).with_name("lint-imports")),
        *("--no-logo", "--no-cache"),
    ),
    "tests side by side": (*_PYTEST, *_SHOWN, "-m", "not lab or beside", *_SIDE_BY_SIDE),
    # Labs measure in real time: nothing may run beside them.
    "tests in quiet labs": (*_PYTEST, *_SHOWN, "-m", "not beside", "tests/lab"),
}


_EXAMPLES = _ROOT / "examples"
_TEMPLATE = Path(__file__).with_name("templates") / "experiment.yaml"
EXPERIMENT = "experiment"
_HIT = "kind: FILE, host: server, rounds: [5], share: 0.2"
_KEYS_OF_ARM = {"congestion-control": "congestion_control", "tolerance": "gather"}
# Of each kind of own code: what an experiment says that uses FILE, and `--set` of `quick`.
KINDS = {
    "topology": ("topology: { name: FILE, hops: 3 }", "topology.name=FILE"),
    "impairment": (f"impairments: [{{ {_HIT} }}]", f"impairments=[{{{_HIT}}}]"),
    **{
        kind: (f"arms: {{ mine: {{ protocol: dblp, {key}: FILE }} }}", f"arms.dblp.{key}=FILE")
        for kind in ("congestion-control", "tolerance", "repair", "order", "filling")
        for key in (_KEYS_OF_ARM.get(kind, kind),)
    },
    "detector": ("phases: { detector: FILE, share: 0.7 }", "phases={detector: FILE}"),
    "model": ("training: { model: FILE }", "training.model=FILE"),
    "dataset": ("training: { dataset: FILE }", "training.dataset=FILE"),
}


def example(kind: str) -> str:
    return f"own_{kind.replace('-', '_')}"


def write_new(kind: str, name: str) -> list[str]:
    """Write the file NAME.py, or NAME.yaml for an experiment; return what to tell the user."""
    if kind not in KINDS and kind != EXPERIMENT:
        raise InputError(f"unknown kind {kind!r}; {one_of(kind, [EXPERIMENT, *KINDS, 'keys'])}")
    ending = ".yaml" if kind == EXPERIMENT else ".py"
    folder, _, last = name.rpartition("/")
    stem = last.removesuffix(ending)
    path = Path(folder or ("/" if name.startswith("/") else "")) / f"{stem}{ending}"
    if path.exists():
        raise InputError(f"{path}: is there already; choose another name")
    (_check_experiment if kind == EXPERIMENT else _check_module)(stem)
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} is missing; mkdir -p makes it")
    if kind == EXPERIMENT:
        text = _TEMPLATE.read_text(encoding="utf-8").replace("NAME.yaml", str(path))
        text = text.replace("EXPERIMENT", stem)
        lines = [f"look at its plan: ./lab plan {path}", f"run it:           ./lab run {path}"]
    else:
        use, setting = KINDS[kind]
        source = (_EXAMPLES / f"{example(kind)}.py").read_text(encoding="utf-8")
        text = source.replace(example(kind), stem)
        here = path if path.is_absolute() or path.parts[0] == ".." else f"./{path}"
        lines = [
            f"in an experiment beside it: {use.replace('FILE', f'./{path.name}')}",
            f"try it: ./lab plan quick --arms dblp --set '{setting.replace('FILE', str(here))}'",
        ]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return [f"wrote {path}", *lines]


def _check_experiment(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise InputError(
            f"{name!r} cannot name an experiment; valid: small letters, digits and '-', such as "
            "my-experiment"
        )


def _check_module(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise InputError(
            f"{name!r} cannot name a Python file; valid: letters, digits and '_', such as my_part"
        )
    # A file in the folder from which Python starts would hide the module.
    if importlib.util.find_spec(name) is not None:
        raise InputError(f"{name!r}: Python has a module of that name; choose another, my_{name}")


def build_site(folder: Path) -> Path:
    _require_usable(folder)
    print("building the documentation with MkDocs: about half a minute", flush=True)
    # Not --quiet: MkDocs then does not even count its warnings, and takes every broken link.
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    argv += ["--config-file", str(_ROOT / "mkdocs.yml"), "--site-dir", str(folder.resolve())]
    # The theme's makers announce another product at each build; it is no warning of ours.
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(argv, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        messages = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        print("\n".join(messages), file=sys.stderr)
        raise InputError("the documentation could not be built; the messages above say why")
    return folder / "index.html"


def _require_usable(folder: Path) -> None:
    """Refuse a folder that cannot be written, or has other files: MkDocs empties it first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            pass
        is_ours = folder == SITE or (folder / "sitemap.xml").is_file() or not any(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    if not is_ours:
        raise InputError(f"{folder}: holds other files; valid: a new or an empty folder")


def test(pytest_arguments: Sequence[str]) -> int:
    """Run every step and return 0 if all passed; with arguments but `--long`, pytest alone."""
    if pytest_arguments and list(pytest_arguments) != ["--long"]:
        return subprocess.run([*_PYTEST, *pytest_arguments], cwd=_ROOT, check=False).returncode
    print("linters, tests without a lab, tests in labs: about 20 minutes on two cores", flush=True)
    # Each lab starts five programs. Without bytecode each would compile its part of the project.
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    failed = []
    for name, argv in _STEPS.items():
        print(f"== {name}", flush=True)
        more = pytest_arguments if "pytest" in argv else ()
        if subprocess.run([*argv, *more], cwd=_ROOT, env=environment, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"lab: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def clean(what: str | None, out: Path, *, yes: bool) -> bool:
    """Remove what was left behind, or all of one experiment; tell whether nothing is left."""
    place, confirm = places.find(what, out), functools.partial(_confirmed, yes)
    left_behind = what is not None and bool(leftovers.why_stale(Path(what)))
    if place.key is not None and not left_behind:
        raise InputError(
            f"{what}: one run; valid: an experiment's name, file or folder, or the folder of a run "
            "that has been left unfinished"
        )
    if what is not None and place.experiment is None:
        place.require_results()
    if left_behind or place.experiment is None:
        folder = Path(what or "") if left_behind else place.results
        return leftovers.clean_leftovers(folder, print, confirm)
    done = leftovers.clean_experiment(place.results, place.experiment, print, confirm)
    if done:
        from analysis.report import writing  # imports what draws figures, which takes a second

        writing.write_index(place.results)
    return done


def _confirmed(yes: bool, question: str) -> bool:
    try:
        answer = yes or typer.confirm(question)
    except (typer.Abort, RuntimeError):  # no one is there to answer, or standard input is closed
        print("\nnothing was removed; --yes does not ask")
        return False
    if not yes and sys.stdin is not None and not sys.stdin.isatty():
        print()  # nobody pressed the key that ends the line
    if not answer:
        print("nothing was removed")
    return answer
