"""The manifest names draws that no seed decides, and the code that was run."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.run import manifest


@pytest.mark.parametrize(
    ("delayed_by", "threshold_bytes", "kinds"),
    [
        (None, None, []),
        ("netem", None, ["netem"]),
        ("netem", 30_000, ["netem", "red"]),
        ("relay", 30_000, ["red"]),
    ],
)
def test_the_kernels_own_draws_are_listed(delayed_by: Any, threshold_bytes: Any, kinds: list[str]):
    end = Port(node="s1", interface="s1-eth1", number=1, pid=None)
    link = LinkEnds(
        name="s1--s2",
        first=end,
        second=end,
        rate_bps=10**7,
        queue_bytes=90_000,
        ecn_threshold_bytes=threshold_bytes,
    )
    lab = LabInfo(hosts={}, switches={}, links=[link], delayed_by=delayed_by)
    changes = manifest.unseeded(lab)
    assert [kind.rpartition("(")[2].rstrip(")") for kind in changes] == kinds


def repository(root: Path, monkeypatch: Any, texts: dict[str, str]) -> None:
    """Makes a folder that holds these files, all of them committed, the one whose code is run."""
    monkeypatch.setattr(manifest, "_ROOT", root)
    git(root, "init", "-q")
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")


def git(root: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *arguments]
    settings = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=settings)
    return done.stdout.strip()


def test_the_sources_stay_the_same_in_a_commit_of_another_name(tmp_path: Path, monkeypatch: Any):
    folders = ("testbed", "controllers", "topologies")
    repository(tmp_path, monkeypatch, {f"{folder}/file.py": folder for folder in folders})
    commit, sources = manifest.commit(), manifest.sources()
    assert sources == {name: git(tmp_path, "rev-parse", f"HEAD:{name}") for name in folders}
    (tmp_path / "page.md").write_text("words")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "--amend", "-m", "two")
    assert manifest.commit() != commit
    assert manifest.sources() == sources
    (tmp_path / "testbed" / "file.py").write_text("changed")
    assert str(manifest.commit()).endswith("+changes")
    assert manifest.of_machine()["sources"] is None


def test_what_no_run_imports_changes_neither_the_code_nor_the_commit(
    tmp_path: Path, monkeypatch: Any
):
    code = ("testbed/run/part.py", "testbed/transport/native/hot.c", "controllers/__main__.py")
    others = ("page.md", "tests/test_part.py", "experiments/quick.yaml", "testbed/cli/verbs.py")
    names = (*code, "topologies/shapes.py", *others)
    repository(tmp_path, monkeypatch, dict.fromkeys(names, "# part of it\n"))
    clean = manifest.code_sha256()

    def change(name: str) -> tuple[bool, bool]:
        """Changes a file and takes it back; tells whether hash and commit differed."""
        path = tmp_path / name
        before = path.read_text() if path.exists() else None
        path.write_text("# changed\n")
        changes = manifest.code_sha256() != clean, str(manifest.commit()).endswith("+changes")
        path.unlink() if before is None else path.write_text(before)
        return changes

    (tmp_path / "testbed" / "run" / ".#part.py").symlink_to("user@host.7")  # of an editor
    new = ("mine.yaml", "mine.py", "topologies/my notes.txt")
    assert {name: change(name) for name in (*others[:3], *new)} == dict.fromkeys(
        (*others[:3], *new), (False, False)
    )
    assert change("testbed/cli/verbs.py") == (False, True)
    counted = (*code, "testbed/mine.py")  # which git does not know
    assert {name: change(name) for name in counted} == dict.fromkeys(counted, (True, True))
    # Other packages are other code.
    monkeypatch.setattr(manifest, "_version", lambda package: "0")
    assert manifest.code_sha256() != clean


def test_outside_a_checkout_no_code_is_named(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(manifest, "_ROOT", tmp_path)
    assert manifest.commit() is manifest.sources() is None
    assert manifest.code_sha256()
