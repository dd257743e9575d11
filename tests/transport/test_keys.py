"""The command that makes keys and certificates."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.shared.input_error import InputError
from testbed.transport.net import keys


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PATH": path})
    command = [sys.executable, "-m", "testbed.transport.net.keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_command_writes_a_pair_per_name_that_only_its_owner_reads(tmp_path: Path):
    folder = tmp_path / "new" / "keys"
    done = run(str(folder), "server", "worker-1")
    assert done.returncode == 0, done.stderr
    names = ["server.crt", "server.key", "worker-1.crt", "worker-1.key"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert sorted(done.stdout.split()) == [str(folder / name) for name in names]
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_exists_is_never_overwritten(tmp_path: Path):
    keys.make(tmp_path, ["server"])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert [file.name for file in keys.make(tmp_path, ["server", "w", "w"])] == ["w.key", "w.crt"]
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    (tmp_path / "w.crt").unlink()
    with pytest.raises(InputError, match=r"w\.key exists, .*w\.crt does not"):
        keys.make(tmp_path, ["w"])
    outside = tmp_path / "outside"
    (tmp_path / "x.key").symlink_to(outside)
    with pytest.raises(InputError):
        keys.make(tmp_path, ["x"])
    assert not outside.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", "-subj=/CN=x\n", "x" * 65, "größe"])
def test_names_that_cannot_be_used_are_refused(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="NAME is "):
        keys.make(tmp_path, ["server", name])
    assert not list(tmp_path.iterdir())


def test_a_missing_openssl_and_an_unusable_folder_are_one_line(tmp_path: Path):
    done = run(str(tmp_path / "keys"), "server", path=str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the program openssl is missing" in done.stderr
    (tmp_path / "file").touch()
    done = run(str(tmp_path / "file"), "server")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "DIR is" in done.stderr
