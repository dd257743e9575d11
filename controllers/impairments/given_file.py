"""A text file that an experiment names: found beside the experiment, and read line by line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.shared import sizes

_LARGEST_BYTES = 64 << 20


def lines(name: str, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """The lines that say something, each with its place for messages, `FILE: line N`."""
    looked = [each.resolve() for each in (*folders, Path())]
    found = next((each / name for each in looked if (each / name).is_file()), None)
    if found is None:
        where = " or ".join(dict.fromkeys(map(str, looked)))
        raise ValueError(f"{name}: no such file; looked in {where}")
    try:
        if found.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"{name}: valid: up to {sizes.in_words(_LARGEST_BYTES)}")
        text = found.read_text(encoding="utf-8-sig")  # some tables begin with a byte order mark
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is no text in UTF-8") from None
    kept = (
        (f"{name}: line {number}", line.partition("#")[0].strip())
        for number, line in enumerate(text.splitlines(), 1)
    )
    if not (found_lines := [(place, line) for place, line in kept if line]):
        raise ValueError(f"{name}: is empty")
    return found_lines
