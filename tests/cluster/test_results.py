"""What another machine sent is unpacked where it belongs; labs of one machine exclude each other."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from testbed.cluster import block, worker


def packed(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_folders_come_as_they_were_but_for_links_and_pipes(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "run" / "events").mkdir(parents=True)
    (there / "run" / "events" / "rounds.jsonl").write_bytes(b"\0\1" * 5000)
    (there / "run" / "config.json").write_text("{}")
    (there / "run" / "link").symlink_to("/etc/passwd")
    here.mkdir()
    block.unpack(worker.pack(there), here, {"run"})
    assert (here / "run" / "events" / "rounds.jsonl").read_bytes() == b"\0\1" * 5000
    assert {path.name for path in (here / "run").iterdir()} == {"events", "config.json"}


@pytest.mark.parametrize(
    "name", ["other/config.json", "../run/x", "run/../../x", "/run/x", "run/../x", ".", ""]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, name):
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(ValueError, match="is no file of these runs"):
        block.unpack(packed((name, b"x")), here, {"run"})
    assert [path.name for path in tmp_path.rglob("x")] == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_what_is_no_file_is_refused(tmp_path, kind):
    with pytest.raises(ValueError, match="is no file of these runs"):
        block.unpack(packed(("run/x", b""), kind=kind, link="/etc"), tmp_path, {"run"})
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_twice(tmp_path):
    with pytest.raises(ValueError, match="'run/x' is no file of these runs"):
        block.unpack(packed(("run/x", b"a"), ("run/x", b"b")), tmp_path, {"run"})
    assert (tmp_path / "run" / "x").read_bytes() == b"a"


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", packed(("run/x", b"abc" * 9999))[:-40]],
    # A packed one holds its time of day: processes that collect in another second would differ.
    ids=["empty", "text", "cut"],
)
def test_what_is_no_archive_is_one_sentence(tmp_path, content):
    with pytest.raises(ValueError, match="no archive of runs"):
        block.unpack(content, tmp_path, {"run"})


HOLDER = """
import sys
from testbed.cluster import worker
with worker.exclusive_lab(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_it(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "has it\n"


def test_the_second_waits_until_the_first_is_killed(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert has_it(first)
    second = holder(tmp_path)
    assert second.stdout is not None
    says, _, _ = select.select([second.stdout], [], [], 1.0)
    assert not says
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert has_it(second)
    second.communicate()
    with worker.exclusive_lab(str(tmp_path)):  # nobody has it any more
        pass


def test_the_folders_of_killed_workers_are_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"lab-block-{ended.pid}-x", f"lab-block-{os.getpid()}-y", "lab-block-mine-z"):
        (tmp_path / name).mkdir()
    worker.remove_abandoned(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"lab-block-{os.getpid()}-y", "lab-block-mine-z"}
