"""A user's own models and data sets, named `module:callable` in an experiment."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.shared.yaml_input import InputError

_INSTALLED = {"site-packages", "dist-packages"}
PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Whether a text has the form `module:callable`; nothing is imported to tell."""
    return PATTERN.fullmatch(text) is not None


def call(reference: str, folder: Path | None, **arguments: Any) -> Any:
    """What the callable of a reference returns.

    Args:
        reference: `module:callable`; the module is looked for in `folder`, then as Python does
            (PYTHONPATH, installed packages).
        folder: the folder of the experiment's YAML file.
        arguments: given to the callable by keyword.

    Raises:
        InputError: there is no such module or callable, or it raised: one line with the type.
    """
    function = _find(reference, folder)
    try:
        return function(**arguments)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise InputError(f"{reference}: called with {given}, it raised {_told(error)}") from error


def _find(reference: str, folder: Path | None) -> Callable[..., Any]:
    module_name, _, name = reference.partition(":")
    try:
        module = _imported(module_name, folder)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{reference}: its module needs {error.name!r}, not found") from error
        where = f"{folder} or on PYTHONPATH" if folder else "PYTHONPATH"
        raise InputError(f"{reference}: there is no module {error.name!r} in {where}") from None
    except Exception as error:
        raise InputError(f"{reference}: importing its module raised {_told(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{reference}: module {module_name!r} has no callable {name!r}")
    return function


def fingerprint(reference: str, folder: Path | None) -> str:
    """The SHA-256 of the sources of a reference's top-level module or package; nothing is executed.

    Empty for an installed package, which the manifest lists with its version, and for what is not
    found: `call` says so.
    """
    top = reference.partition(":")[0].partition(".")[0]
    places = [*([str(folder.resolve())] if folder else []), *sys.path]
    spec = importlib.machinery.PathFinder.find_spec(top, places)
    roots = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    files = sorted(file for root in roots for file in root.rglob("*.py"))
    if spec is not None and spec.origin is not None and not roots:
        files = [Path(spec.origin)]
    if any(_INSTALLED.intersection(file.parts) for file in files):
        return ""
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest() if files else ""


def _imported(module_name: str, folder: Path | None) -> Any:
    if folder is None:
        return importlib.import_module(module_name)
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.remove(place)
        # What the module imports later is found as well, but can no longer hide other modules.
        if place not in sys.path:
            sys.path.append(place)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
