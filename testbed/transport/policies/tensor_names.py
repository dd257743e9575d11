"""Selects tensors of a payload by name, as users write them: globs, joined by semicolons."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from testbed.transport.core.layout import PayloadLayout

_SHOWN = 12
# These characters separate options and globs, as in `per-layer:tensors=*.bias@0;head*@0.1`.
_RESERVED = (",", ";", "@")


def parse_globs(globs: str | Sequence[str], option: str) -> tuple[str, ...]:
    """Splits `*.bias;conv?.weight`, or checks a list; ValueError for an empty or repeated glob."""
    if not isinstance(globs, str | list | tuple):
        raise ValueError(f"{option} is {globs!r}; valid: names or globs, joined by ;")
    parts = globs.split(";") if isinstance(globs, str) else globs
    parsed = tuple(check_glob(part, option) for part in parts if part != "")
    if len(set(parsed)) != len(parsed):
        raise ValueError(f"{option} is {globs!r}; a name is given twice")
    return parsed


def check_glob(glob: object, option: str) -> str:
    """The glob without surrounding spaces; ValueError when it is no valid glob."""
    if not isinstance(glob, str) or not glob.strip() or any(sign in glob for sign in _RESERVED):
        raise ValueError(
            f"{option}: {glob!r} is no tensor name; valid: a name or a glob such as *.bias, "
            "without , ; and @"
        )
    return glob.strip()


def matching(layout: PayloadLayout, glob: str, option: str) -> list[int]:
    """The numbers of the tensors that a glob matches; ValueError, which lists names, for none."""
    numbers = [index for index, (name, _) in enumerate(layout.tensors) if fnmatchcase(name, glob)]
    if not numbers:
        names = [name for name, _ in layout.tensors]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise ValueError(f"{option}: no tensor is called {glob!r}; there are {shown}")
    return numbers


def layer_of(name: str) -> str:
    """The layer of a tensor: `features.0.weight` and `features.0.bias` belong to `features.0`."""
    return name.rpartition(".")[0] or name
