"""Topologies that are files of their own: found by path, known by the hash of their content."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import ExecutionLoader
from importlib.util import decode_source, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from topologies.parameters import TopologyParameters


@dataclass(frozen=True)
class TopologyFile:
    """Where it is and what it holds."""

    path: Path
    sha256: str


def is_path(name: str) -> bool:
    """Whether a topology's name is the path of a file."""
    return name.endswith(".py") or "/" in name


def read(name: str, folders: Sequence[Path], expected_sha256: str | None = None) -> TopologyFile:
    """Find a file, and check that it is the expected one if its hash is given.

    Raises:
        ValueError: there is none, it is another one, or it lacks a name.
    """
    candidates = [folder / name for folder in folders]
    path = next((each.resolve() for each in candidates if each.is_file()), None)
    if path is None:
        raise ValueError(f"{name}: no such file (looked in {', '.join(map(str, folders))})")
    found = module(path)
    sha256 = str(found.SHA256)
    if expected_sha256 not in (None, sha256):
        raise ValueError(f"{path}: has changed: SHA-256 {sha256}, expected {expected_sha256}")
    return TopologyFile(path, sha256)


def module(path: Path) -> ModuleType:
    """The file as a module, executed once per content.

    Raises:
        ValueError: it cannot be read, it raises, or it lacks `Parameters` or `Topology`.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    name = f"lab_topology_{sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = spec_from_loader(name, _Source(path, source))
    assert specification is not None and specification.loader is not None
    made = module_from_spec(specification)
    sys.modules[name] = made  # pydantic looks up annotations here
    try:
        specification.loader.exec_module(made)
        _check(made)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: the file is not ours
        del sys.modules[name]
        raise _in_one_line(path, error) from None
    made.SHA256 = sha256  # type: ignore[attr-defined]
    return made


def build(made: Any, parameters: TopologyParameters) -> Any:
    """The topology, with the checks of `LabTopo` also if it is a plain Mininet `Topo`.

    Raises:
        ValueError: it raises, or is no network of the lab.
    """
    from topologies.base import LabTopo

    kind = made.Topology
    if not issubclass(kind, LabTopo):
        # The base's checks come first; the file's own `build` is what Mininet's `Topo` calls.
        kind = type(kind.__name__, (kind, LabTopo), {})
    path = Path(parameters.name)
    try:
        return kind(parameters)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _in_one_line(path, error) from None


class _Source(ExecutionLoader):
    """Python's import machinery, without its cache of compiled files, which goes by time."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, _name: str) -> str:
        return str(self._path)

    def get_source(self, _name: str) -> str:
        return decode_source(self._source)


def _check(made: ModuleType) -> None:
    from mininet.topo import Topo

    for name, base in (("Parameters", TopologyParameters), ("Topology", Topo)):
        found = made.__dict__.get(name)
        if found is None:
            raise ValueError(f"lacks {name}, a subclass of {base.__name__}")
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{name} is no subclass of {base.__name__}")


def _in_one_line(path: Path, error: BaseException) -> ValueError:
    """The file's last line that was executed, and what was wrong there."""
    if isinstance(error, SyntaxError):
        return ValueError(f"{path}: line {error.lineno}: {error.msg}")
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)
    ]
    where = f"line {frames[-1].lineno}: " if frames else ""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return ValueError(f"{path}: {where}{kind}{' '.join(str(error).split())}")
