"""Names of hosts become addresses in every program of a lab: the sandbox has its own /etc/hosts.

It is mounted before the hosts are made, because each host copies the mounts, and filled afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testbed.lab.kernel.commands import run

_PLACE = Path("/etc/hosts")
_FILE = "hosts"


def cover(private: Path) -> None:
    """Inside a sandbox: mount a file of its own over /etc/hosts."""
    if not _PLACE.exists():
        return
    own = private / _FILE
    own.write_text("127.0.0.1 localhost\n", encoding="ascii")
    # The folder is its owner's alone; every program has to read this file through the mount.
    own.chmod(0o644)
    run(["mount", "--bind", str(own), str(_PLACE)])


def tell(private: Path, addresses: Iterable[tuple[str, str]]) -> None:
    """Add hosts, each with its name and address, to the file."""
    own = private / _FILE
    if own.exists():
        with own.open("a", encoding="ascii") as file:
            file.writelines(f"{address} {name}\n" for name, address in addresses)
