"""Finds and loads the compiled hot path, which lies beside this file once it has been built."""

import ctypes
import hashlib
import struct
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_ELF_HEADER_BYTES = 64
_SOURCE = Path(__file__).with_name("batches.c")
_OTHER_SOURCES = ("batches.h", "routine.c", "sealing.c")  # setup.py has the same order


def _is_whole(elf: bytes) -> bool:
    """Whether a 64-bit ELF file has its end, the table of sections; to load half of it is fatal."""
    if len(elf) < _ELF_HEADER_BYTES:
        return False
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_bytes, entries = struct.unpack_from("<HH", elf, 58)
    return bool(table + entry_bytes * entries <= len(elf))


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    built = (_SOURCE.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES)
    path = next((each for each in built if each.exists()), None)
    if path is None:
        return None, "it was not compiled"
    try:
        if not _is_whole(path.read_bytes()):
            return None, f"{path.name} is cut short"
        library = ctypes.CDLL(str(path))
        library.source.restype = ctypes.c_char_p
        paths = (_SOURCE, *(_SOURCE.with_name(name) for name in _OTHER_SOURCES))
        source = b"".join(path.read_bytes() for path in paths)
        if library.source() != hashlib.sha256(source).hexdigest().encode():
            return None, f"{path.name} was compiled from another source"
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {error}"
    size, address, flag = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    library.compose.argtypes = [address, address, size, size, flag]
    library.place.argtypes = [address, address, size, size, flag]
    library.transfer_of.argtypes = [address, size, size]
    library.take_key.argtypes = [address, ctypes.c_char_p, size, ctypes.c_char_p]
    library.seal_rows.argtypes = [address, address, size]
    library.open_rows.argtypes = [address, address, size, address]
    library.take_key.restype = None
    library.open_rows.restype = size
    library.place.restype = library.transfer_of.restype = size
    if sys.platform.startswith("linux"):
        library.receive.argtypes = [address, flag]
        library.send_rows.argtypes = [address, flag, address, size]
        seconds = ctypes.c_double
        library.depart.argtypes = library.arrive.argtypes = [address, seconds]
        library.depart.restype = library.arrive.restype = None
        library.wait_working.argtypes = [
            *(address, size, address, size, address, size),
            *(seconds, seconds),
        ]
        for function in (library.receive, library.send_rows, library.wait_working):
            function.restype = size
    return library, ""


LIBRARY, WHY_NONE = _load()
"""The library, or None; and why there is none."""
