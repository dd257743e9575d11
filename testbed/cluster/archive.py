"""Packs folders of runs into bytes, and unpacks such bytes without trust in what they name."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

_COMPRESSION = 1  # of nine levels: logs shrink to a fifth, in a tenth of a second for each 10 MB


def pack(folder: Path) -> bytes:
    """All regular files below a folder, and no links, sockets or pipes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=_COMPRESSION) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)
    return packed.getvalue()


def unpack(packed: bytes, folder: Path, names: Collection[str]) -> None:
    """Write what `pack` packed below an empty folder.

    Args:
        packed: bytes from another machine.
        folder: must exist.
        names: what may lie in `folder` itself.

    Raises:
        ValueError: it is no archive, or has a link, a device, a path that leads elsewhere, a name
            that was not expected, or a file twice.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                path = folder.joinpath(*parts)
                if (
                    not member.isreg()
                    or not parts
                    or parts[0] not in names
                    or ".." in parts
                    or path.exists()
                ):
                    raise ValueError(f"{member.name!r} is no file of these runs")
                path.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                with content, path.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of this machine's disk
        raise ValueError(f"no archive of runs: {error}") from None
