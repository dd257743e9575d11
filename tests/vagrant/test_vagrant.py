"""The virtual machine's files: `vagrant/test.sh lint`; one line for what a person gets wrong."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_VAGRANT = _ROOT / "vagrant"


def run(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, **options)


def test_lint():
    done = run(_VAGRANT / "test.sh", "lint")
    assert done.returncode == 0, done.stderr
    assert "PASS lint" in done.stderr
    # It tells whether the Vagrantfile was read; its own trials of wrong settings come after.
    assert ("wrong settings are refused" in done.stderr) == bool(shutil.which("vagrant"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["vagrant/test.sh", "fly"], "valid: lint, package [12|13], chroot [12|13], boot, up"),
        (["vagrant/test.sh", "chroot", "14"], "chroot '14': valid: 12, 13"),
        (["vagrant/test.sh", "package", "14"], "package '14': valid: 12, 13"),
        (["vagrant/build-box.sh", "fly"], "valid: tree TAR, image TREE QCOW2, box"),
    ],
)
def test_an_unknown_word_is_one_line_with_the_valid_ones(command, words, tmp_path):
    if os.geteuid() != 0 and "build-box" in command[0]:
        pytest.skip("needs root")
    done = run(*command, cwd=_ROOT, env=os.environ | {"LAB_BUILD_DIR": str(tmp_path)})
    assert done.returncode == 2, done
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_provisioning_needs_root():
    with tempfile.TemporaryDirectory() as folder:  # unlike tmp_path, below nobody's closed folder
        Path(folder).chmod(0o755)
        script = shutil.copy(_VAGRANT / "provision.sh", folder)
        somebody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        done = run(*somebody, "bash", script)
    assert done.returncode == 2, done
    assert "needs root: sudo " in done.stderr


def test_the_entry_script_refuses_an_unknown_choice_about_torch(tmp_path):
    # A copy, so that a set-up, should it ever begin, is not this checkout's.
    shutil.copy(_ROOT / "lab", tmp_path / "lab")
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    done = run(tmp_path / "lab", "--version", env=os.environ | {"LAB_TORCH": "cpu"})
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1] == "lab: LAB_TORCH is 'cpu'; valid: 0, 1"
    assert not (tmp_path / ".venv").exists()
