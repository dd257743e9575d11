"""Makes the keys and certificates by which the sides of a transport know each other.

    python -m testbed.transport.net.keys keys server worker-1 worker-2

writes NAME.key and NAME.crt for each name. A host needs its own two files and the .crt files of its
peers: a worker the server's, the server all workers'. Nobody else may read a .key file.
"""

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.shared.input_error import InputError

_OPENSSL = "openssl"
_VALID_DAYS = 825
# X.509's limit for a common name.
_LONGEST_NAME = 64


def make(directory: Path, names: Sequence[str]) -> list[Path]:
    """Makes a key and a certificate for each name that has none; returns the files written.

    InputError for an unusable name, half a pair, an unwritable folder, or where openssl fails.
    """
    for name in names:
        plain = name.isascii() and name.replace("-", "").isalnum()
        if not (0 < len(name) <= _LONGEST_NAME and plain):
            raise InputError(
                f"NAME is {name!r}; valid: letters a to z, digits and -, at most {_LONGEST_NAME}"
            )
    written: list[Path] = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in dict.fromkeys(names):
            written += _make_one(directory, name)
    except OSError as error:
        raise InputError(f"DIR is {directory}: {error.strerror or error}") from None
    return written


def _make_one(directory: Path, name: str) -> list[Path]:
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    exist = [file.exists() for file in (key, certificate)]
    if all(exist):
        return []
    if any(exist):
        there, lacks = (key, certificate) if exist[0] else (certificate, key)
        raise InputError(f"{there} exists, {lacks} does not: move it away, or bring the other back")
    arguments = [
        *(_OPENSSL, "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", str(_VALID_DAYS)),
        *("-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", "-", "-out", "-", "-batch"),
    ]
    try:
        done = subprocess.run(arguments, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError(
            f"the program {_OPENSSL} is missing; install it (Debian: apt-get install {_OPENSSL})"
        ) from None
    private, _, public = done.stdout.partition(b"-----BEGIN CERTIFICATE-----")
    if done.returncode or b"PRIVATE KEY" not in private or not public:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(f"{_OPENSSL} failed: {words[-1] if words else 'it printed no key'}")
    only_for_the_owner = functools.partial(os.open, mode=0o600)
    for file, data in ((key, private), (certificate, b"-----BEGIN CERTIFICATE-----" + public)):
        with open(file, "xb", opener=only_for_the_owner) as opened:
            opened.write(data)
    return [key, certificate]


def show(directory: Path, names: Sequence[str]) -> None:
    written = make(directory, names)
    for file in written:
        print(file)
    if not written:
        print(f"all {len(names)} were there already, nothing was changed")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.transport.net.keys",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder for the files")
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="a side's name: server, or a worker's"
    )
    arguments = parser.parse_args()
    try:
        show(arguments.directory, arguments.names)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
