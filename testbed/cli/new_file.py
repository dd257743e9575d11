"""Writes a file that begins something of the user's own: a template, or an example of that kind."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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
    """The name of the file in `examples/` from which a kind is copied."""
    return f"own_{kind.replace('-', '_')}"


def write(kind: str, name: str) -> list[str]:
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
        here = path if path.is_absolute() else f"./{path}"
        lines = [
            f"in an experiment: {use.replace('FILE', f'./{path.name}')}",
            f"try it:           ./lab plan quick --arms dblp --set "
            f"'{setting.replace('FILE', str(here))}'",
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
            f"{name!r} cannot name an experiment; valid: small letters, digits and '-', for "
            f"example {re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'my-experiment'}"
        )


def _check_module(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        like = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        fits = like.isidentifier() and not keyword.iskeyword(like)
        raise InputError(
            f"{name!r} cannot name a Python file; valid: letters, digits and '_', for example "
            f"{like if fits else f'my_{like}' if like else 'my_own'}"
        )
    # A file in the folder from which Python starts would hide the module.
    if importlib.util.find_spec(name) is not None:
        raise InputError(f"{name!r}: Python has a module of that name; choose another, my_{name}")
