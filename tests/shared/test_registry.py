"""Options of an entry: the text and the mapping mean the same."""

import pytest

from testbed.shared.input_error import InputError
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS


@pytest.mark.parametrize("rate", ["20e6", 20e6, 20_000_000])
def test_a_number_that_yaml_reads_as_text_is_a_number_in_a_mapping_too(rate):
    text = CONGESTION_CONTROLS.text({"name": "fixed", "rate_bps": rate})
    name, options = CONGESTION_CONTROLS.parse(text)
    assert name == "fixed"
    assert options == {"rate_bps": 20e6}


def test_an_option_that_a_text_cannot_hold_is_refused_in_one_line():
    with pytest.raises(InputError, match="options must be numbers, true, false, or texts"):
        CONGESTION_CONTROLS.text({"name": "fixed", "rate_bps": "a,b=c"})


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
