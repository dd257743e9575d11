"""What a script's lab is made of: a topology, and impairments that it begins itself."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from testbed.scripting import lab
from testbed.shared.input_error import InputError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "lab-in-python.md"
HALF = {"kind": "loss", "host": "server", "q": 0.5}


def lab_of(topology: Any = "star", impairments: Any = ()) -> dict[str, Any]:
    return lab.of_topology(topology, impairments=impairments, seed=1)


def test_values_may_have_units_as_in_yaml():
    given = {"name": "star", "workers": 2, "rate_bps": "20Mbit", "delay_s": "5ms"}
    short = {"kind": "queue", "host": "server", "queue_bytes": "30kB"}
    found = lab_of(given, [short])
    plain = lab_of(
        {**given, "rate_bps": 20_000_000, "delay_s": 0.005}, [{**short, "queue_bytes": 30_000}]
    )
    assert found == plain
    assert found["topology"]["rate_bps"] == 20_000_000


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"name": "star", "rate_bps": "20 MB/s"}, r"topology\.rate_bps: '20 MB/s': .* 160Mbit"),
        ({"name": "star", "rate_bps": "5ms"}, r"topology\.rate_bps: '5ms': must be a whole"),
    ],
)
def test_a_unit_that_does_not_fit_is_refused(topology, words):
    with pytest.raises(InputError, match=words):
        lab_of(topology)


def test_anchors_of_impairments_do_not_count():
    anchors = [{"rounds": [7], "leg": "gather", "offset_s": 0.1}, {"at_s": [3], "duration_s": 1}]
    for each in anchors:
        assert lab_of(impairments=[HALF | each]) == lab_of(impairments=[HALF])


@pytest.mark.parametrize("wrong", [HALF, "loss", ["loss"]])
def test_what_is_no_list_of_impairments_is_refused(wrong):
    with pytest.raises(InputError, match=r"^impairments: .*: must be a list of mappings, such as"):
        lab_of(impairments=wrong)


def test_the_impairments_of_the_page_are_read():
    page = PAGE.read_text(encoding="utf-8")
    given = re.findall(r"^(?:half|short) = (\{.*\})$", page, re.MULTILINE)
    found = lab_of(impairments=list(map(ast.literal_eval, given)))["impairments"]
    assert [each["name"] for each in found] == ["half", "short"]
