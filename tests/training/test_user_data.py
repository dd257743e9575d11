"""A user's own data and models, and what does not fit: said before a lab is built."""

import sys

import pytest

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, prerequisites
from tests.training.single_process import need_of

pytestmark = pytest.mark.usefixtures("own_cache")


USERS = """
import numpy as np
def images(count=20, worst=2):
    pixels = np.arange(count * 4, dtype=np.float64).reshape(count, 1, 2, 2)
    labels = np.arange(count) % 3
    labels[7] = worst
    return pixels, labels, pixels, labels
def text():
    tokens = np.arange(60).reshape(6, 10) % 5
    return tokens, (tokens + 1) % 5, tokens, (tokens + 1) % 5
def nan():
    pixels, labels, *_ = images()
    return pixels * np.nan, labels, pixels, labels
def two(): return 1, 2
def fails(): raise OSError("disk on fire")
def shapes():
    part = np.zeros((3, 2)), np.zeros(3, dtype=int)
    return *part, *part
def halves(): return np.zeros((3, 1, 2, 2)), np.zeros(3), np.zeros((3, 1, 2, 2)), np.zeros(3)
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "their_data.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path


def test_a_user_s_data_are_images_or_text(users):
    section = {"name": f"{users}/their_data.py:images", "arguments": {"count": 30}}
    dataset = datasets.load(section)
    assert (dataset.task.metric, dataset.classes, dataset.input_shape) == ("accuracy", 3, (1, 2, 2))
    assert len(dataset.train_inputs) == 30
    text = datasets.load(f"{users}/their_data.py:text")
    assert (text.task.metric, text.classes, text.input_shape) == ("perplexity", 5, (10,))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"name": "their_data.py:images", "arguments": {"worst": -1}, "classes": 3},
            "training part: the label of example 7 is -1; valid: 0 to 2",
        ),
        ({"name": "their_data.py:nan"}, "its inputs hold NaN or infinity"),
        ({"name": "their_data.py:two"}, "valid: a tuple of train inputs, train labels"),
        ({"name": "their_data.py:fails"}, "their_data.py: line 15: OSError: disk on fire"),
        ({"name": "their_data.py:shapes"}, r"inputs have shape \(3, 2\) and labels \(3,\)"),
        ({"name": "their_data.py:halves"}, "labels are float32; valid: whole numbers"),
        ({"name": "their_data.py:images", "arguments": {"x": 1}}, "TypeError: images"),
    ],
)
def test_what_is_wrong_with_a_user_s_data_is_said_in_one_line(users, section, message):
    with pytest.raises(InputError, match=message) as caught:
        datasets.load({**section, "name": f"{users}/{section['name']}"})
    assert str(caught.value).startswith(f"{users}/their_data")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("gpt2-tiny", "digits", "takes tokens, but data set 'digits' gives images; valid: sm"),
        ("resnet50", "stdlib-text", "takes images, but .* gives tokens; valid: gpt2-small"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_loaded(model, dataset, message):
    with pytest.raises(ValueError, match=message):
        need_of(model, dataset)


def test_a_user_s_model_is_tried_on_the_data_before_a_lab_is_built(users):
    (users / "their_models.py").write_text(
        "from torch import nn\n"
        "def fits(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "def wide(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(65, classes))\n"
        "def short(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "class Pair(nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        logits = super().forward(inputs.flatten(1))\n"
        "        return (logits, logits) if self.training else logits\n"
        "def pair(classes, input_shape):\n"
        "    return Pair(64, classes)\n"
    )
    prerequisites.prepare([need_of(f"{users}/their_models.py:fits", "digits")], print)
    for name, message in (
        ("wide", "it raised RuntimeError: "),
        ("short", r"gave \(2, 3\); valid: "),
        ("pair", "gave tuple; valid: a tensor of shape"),
    ):
        with pytest.raises(InputError, match=message):
            prerequisites.prepare([need_of(f"{users}/their_models.py:{name}", "digits")], print)
