"""Programs as a script sees them, started here on this machine by a stand-in for the server."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time

import pytest

from testbed.lab.kernel import process_status
from testbed.scripting.host import Host
from testbed.scripting.lab import LabError
from tests import open_files


class OwnMachine:
    """Does what a lab's server does for programs, without a lab."""

    def __init__(self):
        self.running, self.signals = {}, []

    def __call__(self, request, files=()):
        return getattr(self, request["do"])(request, files)

    def start(self, request, files):
        stdin, stdout, stderr, status = files
        try:
            program = subprocess.Popen(
                request["argv"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=request["env"],
                cwd=request["cwd"],
                start_new_session=True,
            )
        except FileNotFoundError:
            raise LabError(f"{request['host']}: {request['argv'][0]}: none") from None
        number, pidfd = len(self.running), os.pidfd_open(program.pid)
        self.running[number] = program
        threading.Thread(target=self.report, args=[program, os.dup(status)], daemon=True).start()
        return {"number": number}, [pidfd]

    def signal(self, request, _files):
        self.signals.append(request["signal"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[request["number"]].pid, request["signal"])
        return {}, []

    def listens(self, _request, _files):
        return {"listens": False}, []

    def report(self, program, file):
        with contextlib.suppress(BrokenPipeError):
            os.write(file, str(program.wait()).encode())
        os.close(file)


@pytest.fixture
def host():
    return Host("worker-1", "10.0.0.2", OwnMachine())


def test_a_program_runs_to_its_end(host):
    done = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert isinstance(done, subprocess.CompletedProcess)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.args[0] == "sh"
    with pytest.raises(subprocess.CalledProcessError) as error:
        host.run(["sh", "-c", "echo why; exit 3"], check=True)
    assert (error.value.returncode, error.value.stdout) == (3, "why\n")


def test_it_reads_nothing_unless_it_is_given_something(host):
    assert host.run(["cat"], timeout=30).stdout == ""
    assert host.run(["cat"], input="x" * 500_000).stdout == "x" * 500_000
    assert host.run(["cat"], input=b"\xff\x00", text=False).stdout == b"\xff\x00"


def test_what_the_script_wrote_itself_comes_before_the_input(host):
    with host.popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdin.write("first\n")
        assert program.communicate("second\n", timeout=30)[0] == "first\nsecond\n"


def test_input_that_nobody_reads_is_not_waited_for(host):
    began_s = time.monotonic()
    with host.popen(["sh", "-c", "exec 3<&0; sleep 30 &"], stdin=subprocess.PIPE) as program:
        program.communicate("x" * 500_000, timeout=20)
    assert time.monotonic() - began_s < 20
    program.kill()


def test_outputs_of_any_size_are_read_side_by_side(host):
    script = "import sys\nfor _ in range(300): print('o'*9999); print('e'*9999, file=sys.stderr)"
    done = host.run(["python3", "-c", script])
    assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)


def test_what_is_no_text_does_not_end_the_script(host):
    assert host.run(["printf", r"caf\351\r\nx"]).stdout == "caf\ufffd\nx"


def test_a_program_that_takes_too_long_is_killed_with_what_it_has_started(host, tmp_path):
    began_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as error:
        host.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], timeout=0.5)
    assert time.monotonic() - began_s < 30
    assert error.value.stdout == "begun\n"
    assert host._ask.signals == [signal.SIGKILL]


@pytest.mark.parametrize("after", ["", "yes &", "sleep 60 & exit 3"])
def test_what_a_program_leaves_running_is_not_waited_for(host, after):
    began_s = time.monotonic()
    done = host.run(["sh", "-c", f"echo said; sleep 60 & {after}"], timeout=20)
    assert done.stdout.startswith("said\n")
    assert done.returncode == (3 if "exit" in after else 0)
    assert time.monotonic() - began_s < 30


def test_what_it_has_started_can_be_ended_once_it_has_ended_itself(host):
    program = host.popen(["sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE)
    output, _ = program.communicate(timeout=30)
    program.kill()
    left_s = time.monotonic() + 30
    while process_status.lives(int(output)):
        assert time.monotonic() < left_s
        time.sleep(0.01)
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("echo out; echo no such port >&2; echo >&2; exit 3", "status 3: no such port"),
        ("echo only this", "status 0: only this"),
        ("kill -TERM $$", "signal SIGTERM"),
    ],
)
def test_a_server_that_has_ended_is_told_with_its_status_and_last_words(host, script, how):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = host.popen(["sh", "-c", script], **pipes)
    with pytest.raises(ProcessLookupError) as error:
        program.wait_until_listening()
    assert str(error.value) == f"{shlex.join(['sh', '-c', script])} has ended with {how}"
    assert "".join(program.communicate()).strip().endswith(how.partition(": ")[2])


def test_a_server_that_does_not_listen_in_time_goes_on(host):
    program = host.popen(["sleep", "60"])
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait_until_listening(0.05)
    assert program.poll() is None
    program.kill()


def test_a_program_goes_on_while_the_script_does_other_things(host):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = host.popen(["sh", "-c", "read line; echo got $line"], **pipes)
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.05)
    assert program.communicate("word\n", timeout=30) == ("got word\n", None)
    assert (program.returncode, program.poll(), program.wait()) == (0, 0, 0)


def test_a_communication_that_took_too_long_can_be_taken_up_again(host):
    program = host.popen(["sh", "-c", "echo one; sleep 0.5; echo two"], stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        program.communicate(timeout=0.2)
    assert program.communicate(timeout=30) == ("one\ntwo\n", None)


def test_its_pid_is_that_of_this_machine_and_signals_reach_it(host):
    program = host.popen(["sleep", "60"])
    os.kill(program.pid, 0)
    program.terminate()
    assert program.wait(30) == -signal.SIGTERM
    program.kill()  # no error, as of subprocess
    assert program.poll() == -signal.SIGTERM
    assert "returncode=-15" in repr(program)


def test_errors_and_output_can_go_to_one_file(host, tmp_path):
    with (tmp_path / "log").open("w") as log:
        program = host.popen(
            ["sh", "-c", "echo a; echo b >&2"], stdout=log, stderr=subprocess.STDOUT
        )
    assert program.wait(30) == 0
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_environment_and_folder_are_the_scripts_unless_it_says_otherwise(
    host, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.chdir(tmp_path)
    assert host.run(["sh", "-c", "pwd; echo $COLOUR"]).stdout == f"{tmp_path}\nblue\n"
    env = {"PATH": os.environ["PATH"]}
    assert host.run(["sh", "-c", "pwd; echo $COLOUR"], env=env, cwd="/").stdout == "/\n\n"


def test_many_programs_at_once_leave_no_file_open(host):
    host.run(["true"])
    before = open_files.now()
    result = []

    def one(number):
        result.append(host.run(["sh", "-c", f"exit {number}"]).returncode)

    threads = [threading.Thread(target=one, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result) == list(range(20))
    open_files.assert_none_since(before, within_s=30)


def test_a_program_that_cannot_be_started_leaves_no_file_open(host):
    before = open_files.now()
    with pytest.raises(LabError, match=r"^worker-1: nothing-here: none$"):
        host.run(["nothing-here"])
    open_files.assert_none_since(before)


def test_a_program_ends_with_its_lab():
    def vanish(request, files=()):
        sleeper = subprocess.Popen(["sleep", "0.2"])
        copies = [os.dup(file) for file in files]

        def end():
            sleeper.wait()
            for copy in copies:
                os.close(copy)

        threading.Thread(target=end).start()
        return {"number": 0}, [os.pidfd_open(sleeper.pid)]

    program = Host("server", "10.0.0.1", vanish).popen(["sleep", "60"])
    assert program.poll() is None
    assert program.wait(30) == -signal.SIGKILL


def test_arguments_that_cannot_be_are_refused(host):
    with pytest.raises(TypeError, match="a list of texts"):
        host.run("ping server")
    for stream in ("stdin", "stdout"):
        with pytest.raises(ValueError, match="STDOUT can only be used for stderr"):
            host.popen(["true"], **{stream: subprocess.STDOUT})
