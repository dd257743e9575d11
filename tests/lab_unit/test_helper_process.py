from __future__ import annotations

import sys
import time

import pytest

from testbed.lab.helpers.process import HelperError, HelperProcess

ECHO = """
from testbed.lab.helpers.process import Requests, say
requests = Requests()
while (request := requests.wait()) is not None:
    if "status" in request:
        raise SystemExit(request["status"])
    say({"heard": request["words"]})
print("the end")
"""


@pytest.fixture
def helper():
    process = HelperProcess([sys.executable, "-c", ECHO], name="echo")
    yield process
    process.close()


def test_requests_of_any_length_are_answered_in_order(helper):
    for words in ("one", "x" * 300_000, "two\nlines"):
        helper.tell(words=words)
        assert helper.hear(10) == {"heard": words}


def test_requests_that_come_together_are_answered_one_by_one(helper):
    for words in ("one", "two"):
        helper.tell(words=words)
    assert [helper.hear(10)["heard"] for _ in range(2)] == ["one", "two"]


def test_a_helper_that_ends_is_named_with_its_status_by_whoever_speaks_with_it(helper):
    helper.tell(status=3)
    with pytest.raises(HelperError, match="echo: ended with status 3"):
        helper.hear(10)
    assert helper.ended
    with pytest.raises(HelperError, match="echo: ended with status 3"):
        helper.tell(words="is anybody there?")


def test_a_helper_that_does_not_answer_is_waited_for_no_longer_than_the_time(helper):
    began_s = time.monotonic()
    with pytest.raises(HelperError, match="echo: no answer in time"):
        helper.hear(0.05)
    assert 0.05 <= time.monotonic() - began_s < 5
    helper.tell(words="late")
    assert helper.hear(10) == {"heard": "late"}


def test_the_end_of_its_input_ends_a_helper_in_order(helper):
    helper.finish(10)
    assert helper.process.returncode == 0


def test_a_helper_that_does_not_end_is_killed():
    helper = HelperProcess([sys.executable, "-c", "import time; time.sleep(60)"], name="sleeper")
    helper.finish(0.05)
    assert helper.process.returncode < 0


def test_what_a_program_prints_is_read_to_its_end():
    helper = HelperProcess([sys.executable, "-c", "print('a' * 200_000)"], name="printer")
    assert helper.read_to_end(10) == b"a" * 200_000 + b"\n"
    helper.close()
