"""The environment replaces a script's arguments, and says in one line what it cannot replace."""

import json
import math
from typing import Any

import pytest

from testbed.ddp import InputError
from testbed.ddp.settings import ENVIRONMENT, resolve
from testbed.transport import preset

GIVEN: dict[str, Any] = {
    "collective": "sharded",
    "mode": "bounded",
    "filling": "zero",
    "segmentation": True,
    **dict.fromkeys(("rate_bps", "port", "interface", "timeout_s", "chunk_bytes")),
    **dict.fromkeys(("leave_out", "min_ranks", "phase")),
    "insecure": False,
    "transfers_in_flight": 4,
    "queue_bytes": math.inf,
    "late_share": 0.0,
}


def chosen(protocol, **given):
    arguments = {**GIVEN, **given}
    found, instead = resolve(protocol, arguments)
    changed = {key for key, value in arguments.items() if getattr(found, key) != value}
    return found, changed - {"rate_bps"}, instead


def test_without_the_variable_the_scripts_arguments_count(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    found, changed, instead = chosen("dblp")
    assert (found.protocol.name, changed, instead) == ("dblp", set(), None)
    assert (found.protocol.congestion_control, found.free) == ("bbr", True)  # no rate is known
    assert found.rate_bps == math.inf


def test_arguments_and_settings_of_the_preset_are_replaced(monkeypatch):
    told = {"protocol": "fixed-low", "tolerance": 0.2, "mode": "reliable", "rate_bps": 1e7}
    monkeypatch.setenv(ENVIRONMENT, json.dumps(told))
    found, changed, _ = chosen(preset("dblp", low=0.1), rate_bps=1e6)
    assert found.protocol == preset("fixed-low", tolerance=0.2)
    assert (found.mode, found.rate_bps, changed) == ("reliable", 1e7, {"mode"})


def test_what_is_not_named_stays(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, '{"port": 46999}')
    protocol = preset("dblp", low=0.1)
    found, changed, _ = chosen(protocol, rate_bps=1e6)
    assert found.protocol is protocol
    assert (found.port, found.rate_bps, changed) == (46999, 1e6, {"port"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "BOUNDED_LOSS: is '{'; valid: a JSON object of arguments"),
        ("[1]", "BOUNDED_LOSS: is '[1]'; valid: a JSON object of arguments"),
        ('{"hook": "glo"}', "BOUNDED_LOSS: hook is 'glo'; valid: bounded-loss, gloo, fp16_"),
        ('{"hook": "gloo", "rank": 2}', "BOUNDED_LOSS: the hook gloo has no 'rank'; valid: noth"),
        ('{"hook": "powerSGD", "rank": 1.5}', "BOUNDED_LOSS: rank is 1.5; valid: a whole number"),
        ('{"protocol": "dblpp"}', "BOUNDED_LOSS: protocol: unknown protocol 'dblpp'; valid: dbl"),
        ('{"protocol": 3}', "BOUNDED_LOSS: protocol is 3; valid: a preset's name or"),
        ('{"lw": 0.1}', "BOUNDED_LOSS: protocol: protocol 'dblp' has no setting 'lw'; valid: low"),
        ('{"rate_bps": "fast"}', "BOUNDED_LOSS: rate_bps is 'fast'; valid: a number"),
        ('{"insecure": 1}', "BOUNDED_LOSS: insecure is 1; valid: true or false"),
        ('{"port": true}', "BOUNDED_LOSS: port is true; valid: a whole number"),
    ],
)
def test_bad_input_is_one_line(text, says, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, text)
    with pytest.raises(InputError) as raised:
        chosen("dblp")
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)
