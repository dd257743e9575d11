"""A lab in Python, without a lab: its configuration, its verdict, and wrong names."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.sandbox import Sandbox
from testbed.scripting import lab as scripting_lab
from testbed.shared import messages
from testbed.shared.input_error import InputError
from testbed.verdict.gates import Gate

# Begins as a server does, and answers nothing else.
STAND_IN = """
import socket, sys
from testbed.shared.messages import MessageError, Messages
messages = Messages(socket.socket(fileno=int(sys.argv[1])))
try:
    request, _ = messages.receive()
    messages.answer(request, {"hosts": {}, "links": [], "impairments": []})
    messages.receive()
except MessageError:
    pass
"""


def start(module, *, outlives_thread):
    ours, theirs = messages.pair()
    with theirs:
        words = [sys.executable, "-c", STAND_IN, str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    return Sandbox(module, process, ours, None)


def test_a_verdict_is_one_line_when_printed():
    late = Gate(name="", key="relay_late_s", value=0.0312345, limit=0.003, outcome="failed")
    unknown = Gate(name="", key="loss_error", value=None, limit=0.1, outcome="not measured")
    fine = Gate(name="", key="rate_error", value=0.01, limit=0.05, outcome="passed")
    result = scripting_lab.Verdict(status="invalid", reasons=[], gates=[late, fine, unknown])
    assert str(result) == (
        "invalid: relay_late_s 0.03123 (limit 0.003), loss_error not measured (limit 0.1)"
    )
    assert repr(result) == f"<Verdict {result}>"
    assert str(scripting_lab.Verdict(status="ok", reasons=[], gates=[fine])) == "ok"


def test_unknown_names_are_told_with_those_that_there_are(monkeypatch):
    monkeypatch.setattr(scripting_lab.sandbox, "start", start)
    with scripting_lab.Lab()._begin({}, out=None, calibrated=False) as lab:
        lab.hosts = lab._hosts({"server": "10.0.0.1", "worker-1": "10.0.0.2"})
        lab._links = {"worker-1--s1": ("worker-1", "s1")}
        with pytest.raises(KeyError, match="host 'worker1': valid: server, worker-1; did you mean"):
            lab.hosts["worker1"]
        assert lab.hosts.get("worker1") is None
        assert "worker1" not in lab.hosts
        with pytest.raises(ValueError, match=r"^link 'worker-1--server': valid: worker-1--s1"):
            lab.link("worker-1", "server")
        with pytest.raises(ValueError, match=r"^impairment 'fog': this lab has none$"):
            lab.impair("fog")


def test_overrides_are_a_list():
    with pytest.raises(InputError, match=r"^overrides: 'rounds=3': must be a list of `KEY=VALUE`"):
        scripting_lab.Lab.from_experiment("quick", overrides="rounds=3")


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "lab-in-python.md"
HALF = {"kind": "loss", "host": "server", "q": 0.5}


def lab_of(topology: Any = "star", impairments: Any = ()) -> dict[str, Any]:
    return scripting_lab.of_topology(topology, impairments=impairments, seed=1)


def test_values_may_have_units_as_in_yaml():
    value = {"name": "star", "workers": 2, "rate_bps": "20Mbit", "delay_s": "5ms"}
    short = {"kind": "queue", "host": "server", "queue_bytes": "30kB"}
    result = lab_of(value, [short])
    plain = lab_of(
        {**value, "rate_bps": 20_000_000, "delay_s": 0.005}, [{**short, "queue_bytes": 30_000}]
    )
    assert result == plain
    assert result["topology"]["rate_bps"] == 20_000_000


def test_anchors_of_impairments_do_not_count():
    anchors = [{"rounds": [7], "leg": "gather", "offset_s": 0.1}, {"at_s": [3], "duration_s": 1}]
    for anchor in anchors:
        assert lab_of(impairments=[HALF | anchor]) == lab_of(impairments=[HALF])


@pytest.mark.parametrize("wrong", [HALF, "loss", ["loss"]])
def test_what_is_no_list_of_impairments_is_refused(wrong):
    with pytest.raises(InputError, match=r"^impairments: .*: must be a list of mappings, such as"):
        lab_of(impairments=wrong)


def test_the_impairments_of_the_page_are_read():
    page = PAGE.read_text(encoding="utf-8")
    value = re.findall(r"^(?:half|short) = (\{.*\})$", page, re.MULTILINE)
    result = lab_of(impairments=list(map(ast.literal_eval, value)))["impairments"]
    assert [entry["name"] for entry in result] == ["half", "short"]
