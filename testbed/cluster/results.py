"""Results of runs as bytes: packed on a worker's machine, unpacked here without trust in them."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from testbed.experiment import Run
from testbed.lab.kernel import privileges
from testbed.run import runner
from testbed.run.runner import Outcome
from testbed.shared import run_directory


def pack(folder: Path) -> bytes:
    """All regular files below a folder, and no links, sockets or pipes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)
    return packed.getvalue()


def unpack(packed: bytes, folder: Path, names: Collection[str]) -> None:
    """Write what `pack` packed below an empty folder; ValueError for all but files in `names`."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                path = folder.joinpath(*parts)
                expected = bool(parts) and parts[0] in names and ".." not in parts
                content = archive.extractfile(member) if member.isreg() and expected else None
                if content is None or path.exists():
                    raise ValueError(f"{member.name!r} is no file of these runs")
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of this machine's disk
        raise ValueError(f"no archive of runs: {error}") from None


def store(folder: Path, runs: Sequence[Run], packed: bytes) -> list[Outcome]:
    """Put runs' folders in their place, earlier attempts beside them; ValueError if not theirs."""
    runner.require_space(folder, runs[0])
    place = folder / runs[0].experiment.name
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=place) as incoming:
        unpack(packed, Path(incoming), {run.key for run in runs})
        for run in runs:
            config = run_directory.read_or_empty(Path(incoming, run.key, "config.json"))
            status = run_directory.read_or_empty(Path(incoming, run.key, "status.json"))
            if config.get("key") != run.key or status.get("verdict") not in run_directory.VERDICTS:
                raise ValueError(f"{run.key} is missing, or has no verdict")
        for run in runs:
            directory = runner.directory_of(folder, run)
            directory.accept(Path(incoming, run.key))
            privileges.hand_over_below(directory.path)
    return [runner.outcome(run, runner.directory_of(folder, run)) for run in runs]
