"""Data that Debian packages hold: where the files lie, and that they are the ones we know."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.shared.input_error import InputError

VARIABLE = "LAB_DATA"  # names a folder that holds the files in place of the package's


@dataclass(frozen=True, kw_only=True)
class Package:
    """A Debian package's folder, and the SHA-256 of each file that is read."""

    name: str
    folder: str
    sha256: Mapping[str, str]

    def is_to_be_installed(self) -> bool:
        return bool(self.missing()) and not os.environ.get(VARIABLE)

    def missing(self) -> str:
        """Say which file is not there; empty where all are."""
        absent = (path for path in map(self._path, self.sha256) if not path.is_file())
        return next((f"{path}: no such file; {self.advice}" for path in absent), "")

    def read(self, name: str) -> bytes:
        """Read a whole file. InputError where it is missing, or not the one that we know."""
        path = self._path(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; {self.advice}") from None
        if (sha256 := hashlib.sha256(content).hexdigest()) != self.sha256[name]:
            raise InputError(
                f"{path}: its SHA-256 is {sha256}, expected {self.sha256[name]}; {self.advice}"
            )
        return content

    @property
    def advice(self) -> str:
        return (
            f"valid: Debian's package {self.name}, or a folder with {', '.join(self.sha256)} "
            f"in the environment variable {VARIABLE}"
        )

    def _path(self, name: str) -> Path:
        return Path(os.environ.get(VARIABLE) or self.folder, name)
