"""Opens files in folders of others: a symbolic link in a file's place is refused, not followed.

Under `sudo` a run's folder belongs to the caller, and what writes there may be root: a link that
the caller, or a program that runs as the caller, has planted would lead root to any file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any


def open_file(path: Path, mode: str, **options: Any) -> IO[Any]:
    """As `open`, for a file whose name is no symbolic link; links on the way to it are followed."""
    return open(
        path,
        mode,
        opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666),
        **options,
    )
