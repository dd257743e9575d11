import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from testbed.lab.helpers import process
from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.shared.messages import wait_for

ECHO = """
from testbed.lab.helpers.process import Requests
requests = Requests()
while (request := requests.wait()) is not None:
    if "status" in request:
        raise SystemExit(request["status"])
    requests.say({"heard": request["words"]})
print("the end")
"""


@pytest.fixture
def helper():
    echo = HelperProcess([sys.executable, "-c", ECHO], name="echo").start()
    yield echo
    echo.close()


def test_requests_of_any_length_are_answered_in_order(helper):
    for words in ("one", "x" * 300_000, "two\nlines"):
        helper.send(words=words)
        assert helper.receive(10) == {"heard": words}
    for words in ("one", "two"):
        helper.send(words=words)
    assert [helper.receive(10)["heard"] for _ in range(2)] == ["one", "two"]


def test_a_helper_that_ends_is_named_with_its_status_by_whoever_speaks_with_it(helper):
    helper.send(status=3)
    with pytest.raises(HelperError, match="echo: ended with status 3"):
        helper.receive(10)
    assert helper.ended
    with pytest.raises(HelperError, match="echo: ended with status 3"):
        helper.send(words="is anybody there?")


def test_a_helper_that_does_not_answer_is_waited_for_no_longer_than_the_time(helper):
    began_s = time.monotonic()
    with pytest.raises(HelperError, match="echo: no answer in time"):
        helper.receive(0.05)
    assert 0.05 <= time.monotonic() - began_s < 30
    helper.send(words="late")
    assert helper.receive(10) == {"heard": "late"}


def test_the_end_of_its_input_ends_a_helper_in_order(helper):
    helper.finish(10)
    assert helper.process.returncode == 0


@contextlib.contextmanager
def started(code: str, *arguments: str) -> Iterator[HelperProcess]:
    odd = HelperProcess([sys.executable, "-c", code, *arguments], name="odd").start()
    try:
        yield odd
    finally:
        odd.close()


def test_a_helper_that_does_not_end_is_killed_and_what_a_program_prints_is_read_to_its_end():
    with started("import time; time.sleep(60)") as odd:
        odd.finish(0.05)
        assert odd.process.returncode < 0
    with started("print('a' * 200_000)") as odd:
        assert odd.read_to_end(10) == b"a" * 200_000 + b"\n"


CLOSES = "import os, time; os.close(0); os.close(1); time.sleep(60)"


def test_a_helper_that_closes_its_connection_and_lives_on_is_waited_for_no_longer_than_a_moment(
    monkeypatch,
):
    monkeypatch.setattr(process, "_END_TIMEOUT_S", 0.2)
    began_s = time.monotonic()
    words = "odd: closed its connection and runs on"
    with started(CLOSES) as odd, pytest.raises(HelperError, match=words):
        odd.receive(30)
    with started(CLOSES) as odd:
        assert odd.read_to_end(1) == b""
        assert odd.process.returncode == -signal.SIGKILL
    assert time.monotonic() - began_s < 50  # the programs sleep for a minute each


def test_a_helper_that_reads_nothing_is_told_no_longer_than_the_time(monkeypatch):
    monkeypatch.setattr(process, "_SEND_TIMEOUT_S", 0.2)
    late = pytest.raises(HelperError, match=r"odd: took no request in 0\.2 s")
    with started("import time; time.sleep(60)") as odd, late:
        for _ in range(10_000):
            odd.send(words="x" * 1000)


PARENT = """
import sys
from testbed.lab.helpers.process import HelperProcess
argv = [sys.executable, "-m", "testbed.lab.helpers.process", "sleep", "60"]
held = HelperProcess(argv, name="held").start()
held.send(do="begin")
held.receive()
print(held.pid, flush=True)
sys.stdin.read()
"""


def test_a_held_program_ends_with_a_parent_that_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        held = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert not wait_for(held, 0.2)  # it runs
            parent.kill()
            parent.wait()
            assert wait_for(held, 10)  # it has ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, signal.SIGKILL)
            os.close(held)
