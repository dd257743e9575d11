"""Options of own code, and of built-in entries, are a text or a mapping."""

from __future__ import annotations

import pytest

from testbed.shared.yaml_input import InputError
from testbed.transport import CONGESTION_CONTROLS, REPAIRS
from tests.examples.places import load_all, place, write

OPTIONS = {
    "tolerance": ("gather", "share", 0.4),
    "repair": ("repair", "interval_s", 0.002),
    "order": ("order", "stride", 3),
    "congestion_control": ("congestion_control", "decrease", 0.7),
    "filling": ("filling", "fade", 0.75),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_are_a_text_or_a_mapping(tmp_path, kind):
    key, option, value = OPTIONS[kind]
    path = place(tmp_path, kind)
    found = set()
    for given in (
        f"./mine.py:{option}={value}",
        {"name": "./mine.py", option: value},
        {"name": str(path), option: value},
    ):
        arms = {"mine": {"protocol": "dblp", key: given}}
        (run,) = load_all(write(tmp_path, kind, arms=arms))
        config = run.config()
        found.add(config["filling"]["gather"] if kind == "filling" else config["protocol"][key])
    assert found == {f"{path}:{option}={value}"}
    for wrong in (f"./mine.py:no_such={value}", {"name": "./mine.py", "no_such": value}):
        arms = {"mine": {"protocol": "dblp", key: wrong}}
        with pytest.raises(InputError, match="has no option 'no_such'; valid options: .*" + option):
            load_all(write(tmp_path, kind, arms=arms))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("congestion_control", {"name": "cubic", "beta": 0.8}, "cubic:beta=0.8"),
        ("order", {"name": "rotating", "share": 0.5}, "rotating:share=0.5"),
        ("repair", {"name": "passes"}, "passes"),
        ("gather", {"name": "fixed", "tolerance": 0.1}, "fixed:tolerance=0.1"),
    ],
)
def test_built_in_entries_may_be_mappings_too(tmp_path, key, value, text):
    arms = {"mine": {"protocol": "dblp", key: value}}
    (run,) = load_all(write(tmp_path, "order", arms=arms))
    assert run.config()["protocol"][key] == text


@pytest.mark.parametrize("key", ["congestion_control", "order", "repair"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"beta": 0.8}, "or a mapping with the key 'name'"),
        (3, "or a mapping with the key 'name'"),
        ({"name": "nothing"}, "unknown"),
        ({"name": "./mine.py", "text": "a,b=c"}, "texts without commas"),
    ],
)
def test_a_mapping_that_names_nothing_is_one_line(tmp_path, key, value, said):
    place(tmp_path, key)
    arms = {"mine": {"protocol": "dblp", key: value}}
    with pytest.raises(InputError, match=said) as caught:
        load_all(write(tmp_path, "order", arms=arms))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rate", ["20e6", 20e6, 20_000_000])
def test_a_number_that_yaml_reads_as_text_is_a_number_in_a_mapping_too(rate):
    text = CONGESTION_CONTROLS.text({"name": "fixed", "rate_bps": rate})
    name, options = CONGESTION_CONTROLS.parse(text)
    assert name == "fixed"
    assert options == {"rate_bps": 20e6}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("walk_s_per_chunk=-1", "walk_s_per_chunk is -1; valid: 0 to 1 second"),
        ("walk_s_per_chunk=x", "walk_s_per_chunk: 'x': must be a number"),
        ("poll_every=100", "poll_every is 100 and poll_s is 0.0; valid: both above 0, or none"),
    ],
)
def test_every_bad_option_names_its_entry(options, said):
    with pytest.raises(ValueError) as caught:
        REPAIRS.create(f"passes:{options}")
    assert str(caught.value).startswith(f"repair 'passes': {said}")
