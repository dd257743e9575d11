"""The environment replaces a script's arguments, and says in one line what it cannot replace."""

import dataclasses
import inspect
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from testbed.ddp import BoundedLoss, InputError, settings
from testbed.ddp.settings import ENVIRONMENT, Settings
from testbed.transport import preset, presets
from testbed.transport.presets import PRESETS

PLAIN = Settings(rate_bps=1e6)


def changed(settings):
    names = [option.name for option in dataclasses.fields(settings)]
    return {name for name in names if getattr(settings, name) != getattr(PLAIN, name)}


def test_help_shows_and_describes_each_option():
    names = [option.name for option in dataclasses.fields(Settings)]
    assert list(inspect.signature(BoundedLoss).parameters) == names
    described = re.findall(r"^    (\w+): ", inspect.getdoc(BoundedLoss.__init__) or "", re.M)
    assert described == [*names, "InputError", "PeerLost"]


def test_without_the_variable_the_scripts_arguments_count(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    settings = Settings("dblp")
    assert (settings.protocol_config.name, settings.make_torch_hook) == ("dblp", None)
    # No rate is known.
    assert (settings.protocol_config.congestion_control, settings.default_control) == ("bbr", True)
    assert settings.link_bps == math.inf


def test_arguments_and_settings_of_the_preset_are_replaced(monkeypatch):
    options = {"protocol": "fixed-low", "tolerance": 0.2, "mode": "reliable", "rate_bps": 1e7}
    monkeypatch.setenv(ENVIRONMENT, json.dumps(options))
    settings = Settings(preset("dblp", low=0.1), rate_bps=1e6)
    assert settings.protocol_config == preset("fixed-low", tolerance=0.2)
    assert (settings.mode, settings.rate_bps) == ("reliable", 1e7)
    assert changed(settings) == {"protocol", "mode", "rate_bps"}


def test_a_hook_over_the_backend_has_options_of_both(monkeypatch):
    options = {"hook": "powerSGD", "rank": 2, "backend": "bounded", "port": 46999}
    options |= {"protocol": "none", "congestion_control": "bbr"}
    monkeypatch.setenv(ENVIRONMENT, json.dumps(options))
    settings = Settings(rate_bps=1e6)
    assert settings.make_torch_hook is not None
    assert settings.over_backend
    assert settings.protocol_config == preset("none", congestion_control="bbr")
    assert (settings.port, changed(settings)) == (46999, {"protocol", "port"})


def test_what_is_not_named_stays(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, '{"port": 46999}')
    protocol = preset("dblp", low=0.1)
    settings = Settings(protocol, rate_bps=1e6)
    assert settings.protocol_config is protocol
    assert (settings.port, changed(settings)) == (46999, {"protocol", "port"})


def test_a_scaler_is_whatever_has_a_scale():
    class Own:
        def get_scale(self):
            return 2.0

    own = Own()
    assert Settings(scaler=own).scaler is own


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "BOUNDED_LOSS: is '{'; valid: a JSON object of arguments"),
        ("[1]", "BOUNDED_LOSS: is '[1]'; valid: a JSON object of arguments"),
        ('{"hook": "glo"}', "BOUNDED_LOSS: hook is 'glo'; valid: bounded-loss, gloo, fp16_"),
        ('{"hook": "gloo", "rank": 2}', "BOUNDED_LOSS: the hook gloo has no 'rank'; valid: noth"),
        ('{"hook": "powerSGD", "rank": 0}', "BOUNDED_LOSS: rank is 0; valid: 1 or more"),
        ('{"mode": "relaible"}', "BOUNDED_LOSS: mode is 'relaible'; valid: bounded, "),
        ('{"hook": "powerSGD", "rank": 1.5}', "BOUNDED_LOSS: rank is 1.5; valid: a whole number"),
        ('{"backend": "bounded"}', "BOUNDED_LOSS: backend is 'bounded' with the hook bounded-loss"),
        (
            '{"hook": "powerSGD", "backend": "gloo"}',
            "BOUNDED_LOSS: backend is 'gloo' with the hook powerSGD; valid: bounded, with fp16_",
        ),
        (
            '{"hook": "powerSGD", "backend": "bounded", "ranks": 2}',
            "BOUNDED_LOSS: 'ranks' is no option; valid: hook, backend, ",
        ),
        ('{"rate_bsp": 5e7}', "BOUNDED_LOSS: 'rate_bsp' is no option; valid: hook, "),
        ('{"protocol": "dblpp"}', "BOUNDED_LOSS: protocol: unknown protocol 'dblpp'; valid: dbl"),
        ('{"protocol": 3}', "BOUNDED_LOSS: protocol is 3; valid: a preset's name or"),
        ('{"rate_bps": "fast"}', "BOUNDED_LOSS: rate_bps is 'fast'; valid: a number"),
        ('{"insecure": 1}', "BOUNDED_LOSS: insecure is 1; valid: true or false"),
    ],
)
def test_bad_input_is_one_line(text, says, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, text)
    with pytest.raises(InputError) as raised:
        Settings("dblp")
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"keep": 0.5},
            "'keep' is no option; valid: testbed.transport.preset('dblp', keep=0.5) as the "
            "protocol",
        ),
        (
            {"protocol": "ltp", "patience": 2},
            "'patience' is no option; valid: testbed.transport.preset('ltp', patience=2) as the "
            "protocol",
        ),
        ({"patience": 2}, "'patience' is no option; valid: protocol, group"),
        (
            {"protocol": preset("dblp"), "low": 0.1, "rate_bps": 1e6},
            "'low' is no option; valid: ",
        ),
        ({"protocol": "dpbl", "low": 0.1}, "'low' is no option; valid: protocol"),
        ({"rate_bps": True}, "rate_bps is true; valid: a number, or None"),
        ({"queue_bytes": 0}, "queue_bytes is 0; valid: bytes, above 0"),
        ({"transfers_in_flight": 1.5}, "transfers_in_flight is 1.5; valid: a whole number"),
        ({"late_share": None}, "late_share is nothing (null); valid: a number"),
        ({"timeout_s": 0}, "timeout_s is 0; valid: seconds, above 0 and finite"),
        ({"rate_bps": -1.0}, "rate_bps is -1.0; valid: bits per second, above 0"),
        ({"late_share": 0.005}, "late_share is 0.005; valid: 0, or 0.01 to 1"),
        ({"late_share": 0.1, "protocol": "tcp-reno"}, "late_share is 0.1; valid: 0 with the proto"),
        ({"late_share": 0.1, "mode": "reliable"}, "late_share is 0.1, mode 'reliable' and filling"),
        ({"broadcast_tolerance": 1.0}, "broadcast_tolerance is 1.0; valid: 0, or a share below 1"),
        ({"broadcast_tolerance": 0.1}, "broadcast_tolerance is 0.1, mode 'bounded' and filling"),
        ({"min_ranks": 2}, "min_ranks is 2 and collective 'sharded'; valid: None, or 1 and more"),
        ({"port": 0}, "port is 0; valid: 1 to 65535, or None for free ones"),
        ({"scaler": 3}, "scaler is 3; valid: a GradScaler, or None"),
        ({"phase": "accuracy"}, "phase is 'accuracy'; valid: gradient-norm, a Detector of "),
        ({"chunk_bytes": 1441}, "chunk_bytes is 1441; valid: a multiple of 4"),
        ({"protocol": "mlt"}, "protocol mlt: it bounds the loss of each layer"),
        ({"protocol": preset("dblp")}, "rate_bps is missing, which the congestion control of dblp"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, says):
    with pytest.raises(InputError) as raised:
        Settings(**arguments)
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


def test_numbers_of_numpy_are_numbers():
    numbers: dict[str, Any] = {"rate_bps": np.float32(1e6), "port": np.int64(5000)}
    settings = Settings(**numbers)
    assert settings.link_bps == 1e6 and settings.port == 5000


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("value", ["x", -1, 10**400, [], {"name": 3}, None, True])
def test_whatever_a_setting_of_a_preset_is_the_answer_is_one_line(name, value):
    refused = set()
    for key in presets.settings(name):
        try:
            settings.check(json.dumps({"protocol": name, key: value}))
        except InputError as error:
            assert "\n" not in str(error)
            refused.add(key)
    accepted = set(presets.settings(name)) - refused
    texts = {"name", "must", "congestion_control"} if value == "x" else set()
    assert accepted <= ({"patience", "first"} if value is None else texts), accepted
