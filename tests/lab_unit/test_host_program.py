"""Programs are started in the namespaces of a process that stands for an emulated host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.lab import host_program
from testbed.lab.host_program import ProgramError
from testbed.lab.network import HostInfo
from tests.verdict import evidence_of_gates

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root enters namespaces here")


@pytest.fixture(scope="module")
def host():
    # It says when it is there; `cat` then lives until its input ends.
    argv = ["unshare", "--net", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys; echo; exec cat"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    yield evidence_of_gates.host("worker-1", process.pid)
    process.stdin.close()
    process.wait()
    process.stdout.close()


def output_of(host, argv, **options):
    process = host_program.start(host, argv, stdout=subprocess.PIPE, **options)
    output, _ = process.communicate(timeout=10)
    return process.returncode, output.decode()


def test_a_program_runs_in_the_hosts_network_and_sees_its_interfaces(host):
    def places(of):
        return [str(Path(f"/proc/{of}/ns/{kind}").readlink()) for kind in ("net", "mnt")]

    before = places("thread-self"), Path.cwd()
    shown = ["sh", "-c", "readlink /proc/self/ns/net /proc/self/ns/mnt; ls /sys/class/net"]
    status, output = output_of(host, shown)
    assert (status, output.split()) == (0, [*places(host.pid), "lo"])
    assert (places("thread-self"), Path.cwd()) == before  # the thread that asks stays


def test_a_program_gets_its_input_environment_and_folder(host, tmp_path):
    text = tmp_path / "text"
    text.write_text("hello")
    with text.open("rb") as stdin:
        status, output = output_of(
            host,
            ["sh", "-c", "cat; pwd; echo $COLOUR $HOME"],
            stdin=stdin.fileno(),
            env={"COLOUR": "blue", "PATH": os.environ["PATH"]},
            cwd=tmp_path,
        )
    assert (status, output) == (0, f"hello{tmp_path}\nblue\n")
    assert output_of(host, ["pwd"]) == (0, f"{Path.cwd()}\n")  # where none is named


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "worker-1: no program is given"),
        ([""], "worker-1: no program is given"),
        (["no-such-thing"], "worker-1: no-such-thing: there is no such program"),
        (["/etc/passwd"], "worker-1: /etc/passwd: cannot be started: Permission denied"),
        (["echo", "a\0b"], "worker-1: echo: cannot be started: embedded null byte"),
    ],
)
def test_what_cannot_be_started_is_named_in_one_line(host, argv, words):
    with pytest.raises(ProgramError) as error:
        host_program.start(host, argv)
    assert str(error.value) == words


def test_a_folder_or_host_that_is_not_there_is_not_taken_for_a_missing_program(host, tmp_path):
    with pytest.raises(ProgramError, match=r"^worker-1: true: .*: there is no .*/nowhere$"):
        host_program.start(host, ["true"], cwd=tmp_path / "nowhere")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = HostInfo(**{**vars(host), "pid": ended.pid})
    with pytest.raises(ProgramError, match=rf"^worker-1: true: .*: there is no /proc/{ended.pid}/"):
        host_program.start(gone, ["true"])
