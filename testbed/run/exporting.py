"""Packs an experiment's results into one archive; the same folder gives the same bytes."""

from __future__ import annotations

import hashlib
import secrets
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO

from testbed.run import planning
from testbed.shared import own_code, run_directory
from testbed.shared.input_error import InputError

_ROOT = Path(__file__).resolve().parents[2]
_BULKY = ("samples", "pcap")  # of a run: drawn in timelines and read by people; no table needs them
_TABLES = (".json", ".csv", ".md")  # of a report: what can be compared with another one's
_ENVIRONMENT = ("pyproject.toml", "vagrant/build-tools.lock", "vagrant/requirements.lock")
_README = Path(__file__).with_name("archive.md")


def refuse(folder: Path, target: Path) -> None:
    """Refuse what cannot be packed, before a report is written."""
    if target.exists():
        raise InputError(f"-o {target}: exists already; valid: a new file")
    if not planning.read(folder):
        raise InputError(f"{folder}: no experiment was planned in this folder")
    for path in folder.glob("*.partial"):
        if run_directory.in_use(path):
            raise InputError(f"{path}: this run is going on; export the results when it has ended")


def export(folder: Path, target: Path) -> int:
    """Write an archive of an experiment's folder, with the tables of its report."""
    refuse(folder, target)
    new = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with new.open("xb") as file:
            _write(file, folder)
        new.rename(target)
    except OSError as error:
        raise InputError(f"-o {target}: cannot be written: {error.strerror}") from None
    finally:
        new.unlink(missing_ok=True)
    return target.stat().st_size


def _write(file: IO[bytes], folder: Path) -> None:
    runs = sorted(path.parent for path in folder.glob("*/config.json"))
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        files = sorted(_files(folder, runs))
        sums = {name: _add(archive, name, path.read_bytes()) for name, path in files}
        packages = {
            f"{distribution.name}=={distribution.version}\n"
            for distribution in metadata.distributions()
        }
        for name, text in (
            ("README.md", _readme(folder, runs)),
            ("environment/packages.txt", "".join(sorted(packages, key=str.lower))),
        ):
            sums[name] = _add(archive, name, text.encode())
        listed = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        _add(archive, "SHA256SUMS", listed.encode())


def _is_own(path: Path) -> bool:
    """Return whether it is a file, and no link to one elsewhere."""
    return path.is_file() and not path.is_symlink()


def _files(folder: Path, runs: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield what is packed, with its name in the archive."""
    results = f"results/{folder.name}"
    for name in (planning.FILE, "experiment.json"):
        if _is_own(folder / name):
            yield f"{results}/{name}", folder / name
    code: dict[str, Path] = {}
    for run in runs:
        for path in run.rglob("*"):
            inside = path.relative_to(run)
            if not _is_own(path):
                continue
            if inside.parts[0] not in _BULKY:
                yield f"{results}/{run.name}/{inside.as_posix()}", path
        places: Mapping[str, str] = run_directory.read_or_empty(run / "config.json").get("code", {})
        for place, sha256 in places.items():
            # What a configuration names is not packed unless it is the very file that was run.
            if Path(place).is_file() and own_code.fingerprint(place) == sha256:
                code[f"code/{sha256[:12]}/{Path(place).name}"] = Path(place)
    yield from code.items()
    for path in (folder / "report").glob("*"):
        if path.suffix in _TABLES and _is_own(path):
            yield f"expected/{path.name}", path
    for name in _ENVIRONMENT:
        yield f"environment/{Path(name).name}", _ROOT / name
    yield "CITATION.cff", _ROOT / "CITATION.cff"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> str:
    """Store a file's content; return the SHA-256."""
    member = zipfile.ZipInfo(name)  # of 1980, whenever it is written
    member.external_attr = 0o100644 << 16
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, content)
    return hashlib.sha256(content).hexdigest()


def _readme(folder: Path, runs: list[Path]) -> str:
    verdicts = [str(run_directory.status(run).get("verdict")) for run in runs]
    manifests = [run_directory.read_or_empty(run / "manifest.json") for run in runs]
    facts = ("cpu", "kernel", "distribution")
    machines = (
        ", ".join(str(manifest[fact]) for fact in facts if manifest.get(fact))
        for manifest in manifests
    )
    commits = [str(manifest["commit"]) for manifest in manifests if manifest.get("commit")]
    commands = planning.read(folder).get("commands") or [f"./lab run {folder.name}"]
    described = run_directory.read_or_empty(folder / "experiment.json").get("description", "")
    return _README.read_text(encoding="utf-8").format(
        name=folder.name,
        description=f"{described}\n" if described else "",
        runs=len(runs),
        verdicts=", ".join(f"{count} {word}" for word, count in sorted(Counter(verdicts).items())),
        commits=", ".join(dict.fromkeys(commits)) or "not recorded",
        machines="; ".join(dict.fromkeys(filter(None, machines))) or "not recorded",
        commands="; ".join(f"`{command}`" for command in commands),
        checkout=commits[0].partition("+")[0] if commits else "COMMIT",
    )
