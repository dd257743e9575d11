"""Loads the compiled libraries, which lie beside their C sources once they are built."""

import ctypes
import hashlib
import struct
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCES = Path(__file__).with_name("native")
_ELF_HEADER_BYTES, _ELF_64_BITS = 64, 2
_KINDS: dict[str, Any] = {
    "-": None,
    "a": ctypes.c_void_p,
    "c": ctypes.c_char_p,
    "d": ctypes.c_double,
    "i": ctypes.c_int,
    "s": ctypes.c_int64,
}
# A function's name, what it returns, and what it takes, in letters of `_KINDS`.
Function = tuple[str, str, str]


def _is_whole(elf: bytes) -> bool:
    """Tells whether a 64-bit ELF file has its end, the table of sections: half a one kills."""
    if len(elf) < _ELF_HEADER_BYTES:
        return False
    if elf[4] != _ELF_64_BITS:
        return True
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_bytes, entries = struct.unpack_from("<HH", elf, 58)
    return bool(table + entry_bytes * entries <= len(elf))


def load(source: Path, functions: Iterable[Function]) -> tuple[ctypes.CDLL | None, str]:
    """Loads the library of a source; None, and why, where that fails."""
    built = (source.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES)
    path = next((file for file in built if file.exists()), None)
    if path is None:
        return None, "it was not compiled"
    try:
        if not _is_whole(path.read_bytes()):
            return None, f"{path.name} is cut short"
        library = ctypes.CDLL(str(path))
        library.source.restype = ctypes.c_char_p
        if library.source() != hashlib.sha256(source.read_bytes()).hexdigest().encode():
            return None, f"{path.name} was compiled from another source"
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {error}"
    for name, result, arguments in functions:
        function = getattr(library, name)
        function.restype = _KINDS[result]
        function.argtypes = [_KINDS[argument] for argument in arguments]
    return library, ""


def structure(*fields: tuple[type, str]) -> list[tuple[str, type]]:
    """Lists the fields of a C structure: each type with the names that have it, in order."""
    return [(name, kind) for kind, names in fields for name in names.split()]


def address_of(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
