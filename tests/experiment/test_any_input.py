"""Whatever stands in an experiment file, reading it gives runs or one line; nothing else."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed import experiment
from testbed.experiment.schema import Experiment
from testbed.shared import problems, units, yaml_input
from testbed.shared.input_error import InputError
from testbed.transport import presets

_ROOT = Path(__file__).resolve().parents[2]
_OWN_FILES = [
    *sorted(_ROOT.glob("experiments/*.yaml")),
    _ROOT / "examples/own.yaml",
    *(_ROOT / name for name in ("analysis/claims.yaml", "tests/cli/wrong_inputs.yaml")),
    _ROOT / "testbed/documentation/run_directory_format.yaml",
]
_BASE = {
    "name": "small",
    "description": "all sections",
    "rounds": 10,
    "seeds": [1, 2],
    "topology": {
        "name": "dumbbell",
        "workers": 2,
        "delay_s": 0.001,
        "core": {"rate_bps": 10_000_000},
    },
    "training": {"model": "mlp", "dataset": "digits", "pace": {"kind": "real"}},
    "transport": {"chunk_bytes": 1456},
    "phases": {"detector": "gradient-norm", "eta": 0.5},
    "arms": {
        "a": {"protocol": "dblp", "low": 0.01, "order": "shuffled", "filling": {"gather": "zero"}},
        "b": {"protocol": "tcp", "congestion_control": "cubic"},
    },
    "impairments": [
        {"kind": "loss", "host": "server", "rounds": [3], "q": 0.9},
        {"kind": "burst", "at_s": {"every": 1, "until": 9}, "duration_s": 0.1, "rate_factor": 2},
    ],
    "factors": {"rounds": [10, 20]},
    "profiles": {"server": {"rounds": 30}},
    "limits": {"cpu_others": 0.5},
}
_WORDS = ["star", "loss", "dblp", "zero", "fixed:rate_bps=20e6", "phased:low=x", "5ms", "100Mbit"]
_TEXTS = st.sampled_from([*_WORDS, "", "a\nb", "./no.py", "x:y", "\x1b[31m", "{", "=", "é"]) | (
    st.text(max_size=8)
)
_KEYS = st.sampled_from(
    ["name", "kind", "rounds", "q", "policy", "low", "host", "every", "from", "rate_bps", "label"]
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 10**30]),
    st.floats(),
    _TEXTS,
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_KEYS | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from _places(inner, (*above, key))


_PLACES = list(_places(_BASE))
_ARM_KEYS = sorted({key for name in presets.PRESETS for key in presets.settings(name)})


def _one_line(message: str) -> None:
    assert message
    assert len(message.splitlines()) == 1, message
    assert "pydantic" not in message
    assert "Input should" not in message


def _read(document: dict[str, Any]) -> None:
    try:
        Experiment.model_validate(units.converted(document), context={"folders": [Path()]})
    except ValidationError as error:
        for line in problems.input_error(error, Experiment).args:
            _one_line(line)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(_PLACES), _VALUES)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(place, value):
    document: Any = copy.deepcopy(_BASE)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    _read(document)


@settings(max_examples=75, deadline=None)
@given(st.sampled_from(list(presets.PRESETS)), st.sampled_from(_ARM_KEYS), _VALUES)
@example("dblp", "congestion_control", {"name": "compensated", "most": [1]})
@example("tcp", "congestion_control", {"name": 3})
@example("plot", "tensors", {"a": {}})
def test_any_value_of_an_arm_is_taken_or_refused_in_one_line(protocol, key, value):
    document: Any = copy.deepcopy(_BASE)
    document["arms"]["a"] = {"protocol": protocol, key: value}
    _read(document)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.sampled_from(list(_BASE)) | _KEYS, _VALUES, max_size=4))
def test_any_file_is_read_or_refused_in_one_line_each(tmp_path, changes):
    path = tmp_path / "any.yaml"
    path.write_text(yaml.safe_dump({**_BASE, **changes}), encoding="utf-8")
    try:
        experiment.load(str(path))
    except InputError as error:
        for line in str(error).split("\n"):
            _one_line(line)


@settings(max_examples=75, deadline=None)
@given(st.text(alphabet="ab1.-:,#&*!|>%@`'\"[]{}?~ \n\t<\x00e_é", max_size=30))
@example("0x_")
@example("a: &a [*a]")
@example("<<: [1]")
def test_any_text_is_plain_data_or_refused_in_one_line(text):
    try:
        parsed = yaml_input.parse(text)
    except InputError as error:
        _one_line(str(error))
    else:
        assert isinstance(parsed, dict | list | str | int | float | None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50e6", 50e6),
        ("1_000_000", 1_000_000),
        ("0x1F", 31),
        ("010", 10),
        ("-.5e3", -500.0),
        ("1:30", "1:30"),
        ("2026-13-45", "2026-13-45"),
        ("2026-12-24", "2026-12-24"),
        ("'10'", "10"),
        ("!!str 10", "10"),
        ("{no: yes}", {"no": True}),
        ("[[], {}, '', ~, [-3, 'no']]", [[], {}, "", None, [-3, "no"]]),
        ("{1: a, 1.5: b, null: c}", {"1": "a", "1.5": "b", "null": "c"}),
        ("{base: &b {x: 1}, top: {<<: *b, y: 2}}", {"base": {"x": 1}, "top": {"x": 1, "y": 2}}),
    ],
)
def test_plain_values(text, value):
    assert yaml_input.parse(text) == value


@pytest.mark.parametrize("path", _OWN_FILES, ids=lambda path: path.stem)
def test_our_own_files_are_read_as_any_reader_of_yaml_reads_them(path):
    text = path.read_text(encoding="utf-8")
    assert yaml_input.parse(text) == yaml.safe_load(text)
