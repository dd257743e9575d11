"""`./lab` names what a system lacks, and installs it where it can."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "lab"
NOT_LINKED = {"mn", "apt-get", "sudo", "id"}


@pytest.fixture
def system(tmp_path):
    """A machine without Mininet, apt-get and sudo; calls its entry script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in NOT_LINKED:
            (programs / program.name).symlink_to(program)

    class System:
        @staticmethod
        def has(name, script):
            (programs / name).write_text(f"#!/bin/bash\n{script}\n")
            (programs / name).chmod(0o755)

        @staticmethod
        def lab(*arguments):
            shutil.copy(LAB, tmp_path / "lab")
            return subprocess.run(
                [tmp_path / "lab", *arguments],
                env=os.environ | {"PATH": str(programs)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )

        called = tmp_path / "called.txt"

    made = System()
    made.has("id", "echo 0")
    return made


def test_without_apt_get_it_names_what_is_missing_and_where_to_read_on(system):
    done = system.lab("list")
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("lab: missing: mininet (names of Debian's packages). ")
    page = Path(line.split()[-5])
    assert (LAB.parent / page).is_file()


def test_without_root_and_sudo_it_prints_the_command_for_the_administrator(system):
    system.has("apt-get", f"echo $* >>{system.called}")
    system.has("id", "echo 1000")
    done = system.lab("setup", "--packages")
    assert done.returncode == 2
    assert "apt-get update; apt-get install --no-install-recommends mininet" in done.stderr
    assert not system.called.exists()


def test_a_failed_update_of_the_package_lists_does_not_stop_the_installation(system):
    # The "installation" makes Mininet appear; a source that is broken makes every update fail.
    system.has(
        "apt-get",
        f"echo $* >>{system.called}\n"
        'case "$*" in *update*) exit 100 ;; esac\n'
        'ln -s /bin/true "$(dirname "$0")/mn"',
    )
    done = system.lab("setup", "--packages")
    assert done.returncode == 0, done.stderr
    assert "apt-get update failed" in done.stderr
    update, install = system.called.read_text().splitlines()
    assert "update" in update.split()
    assert install.endswith("install -qq mininet")


def test_a_package_that_apt_get_does_not_have_ends_it_in_one_line(system):
    system.has("apt-get", 'case "$*" in *install*) exit 100 ;; esac')
    done = system.lab("setup", "--packages")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("lab: apt-get could not install: mininet - ")
