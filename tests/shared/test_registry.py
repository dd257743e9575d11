"""Options of an entry: the text and the mapping mean the same."""

import pytest

from testbed.shared.input_error import InputError
from testbed.transport.policies.congestion import CONGESTION_CONTROLS


@pytest.mark.parametrize("rate", ["20e6", 20e6, 20_000_000])
def test_a_number_that_yaml_reads_as_text_is_a_number_in_a_mapping_too(rate):
    text = CONGESTION_CONTROLS.text({"name": "fixed", "rate_bps": rate})
    name, options = CONGESTION_CONTROLS.parse(text)
    assert name == "fixed"
    assert options == {"rate_bps": 20e6}


def test_an_option_that_a_text_cannot_hold_is_refused_in_one_line():
    with pytest.raises(InputError, match="options must be numbers, true, false, or texts"):
        CONGESTION_CONTROLS.text({"name": "fixed", "rate_bps": "a,b=c"})
