"""A sampler is asked to write what there is; its answers may come late."""

import sys

import pytest

from testbed import sampling
from testbed.lab.helpers.process import HelperProcess
from testbed.lab.kernel.commands import CommandError

# Answers the first request after the second one has come.
LATE = """
import json
print('{"ready": true}', flush=True)
first, second = json.loads(input()), json.loads(input())
print(json.dumps({"number": first["number"], "problems": ["the disk was full"]}), flush=True)
print(json.dumps({"number": second["number"], "problems": []}), flush=True)
third = json.loads(input())
print(json.dumps({"number": third["number"], "problems": ["queues: gone"]}), flush=True)
"""


def test_an_answer_that_comes_late_is_not_taken_for_the_next_ones(monkeypatch):
    helper = HelperProcess([sys.executable, "-c", LATE], name="sampler")
    sampler = sampling.RunningSampler(helper)
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr(sampling, "_TIMEOUT_S", 0.05)
            with pytest.raises(CommandError, match="no answer in time"):
                sampler.write()
        sampler.write()
        with pytest.raises(CommandError, match="no samples: queues: gone"):
            sampler.write()
    finally:
        helper.close()
