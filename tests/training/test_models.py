"""Models: published sizes, equal replicas, flat gradients, and what a user may get wrong."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from testbed.shared.yaml_input import InputError
from testbed.training import models
from testbed.training.datasets.base import CLASSIFICATION, LANGUAGE_MODELLING, OF_WORDS
from testbed.training.models import MODELS
from testbed.training.state import ModelAndData, flatten_gradient

IMAGES = [name for name, entry in MODELS.items() if entry.inputs == "images"]
COLOUR: dict[str, Any] = {"classes": 10, "input_shape": (3, 32, 32)}
TEXT: dict[str, Any] = {"classes": 97, "input_shape": (16,)}
WORDS: dict[str, Any] = {"classes": 66, "input_shape": (91,)}
TRAINABLE_HERE = ["small-cnn", "mlp", "efficientnet-b0", "resnet-18", "gpt2-tiny", "word-embedding"]


@pytest.fixture(autouse=True)
def _as_in_a_run():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def size(name):
    return {"images": COLOUR, "tokens": TEXT, "words": WORDS}[MODELS[name].inputs]


def batch(name, examples=2):
    generator = torch.Generator().manual_seed(0)
    if MODELS[name].inputs == "images":
        inputs = torch.randn(examples, *COLOUR["input_shape"], generator=generator)
        return inputs, torch.arange(examples) % COLOUR["classes"], CLASSIFICATION
    if MODELS[name].inputs == "words":
        verses = torch.randint(8192, (examples, 91), generator=generator)
        return verses, torch.arange(examples), OF_WORDS
    text = torch.randint(TEXT["classes"], (examples, 17), generator=generator)
    return text[:, :-1], text[:, 1:], LANGUAGE_MODELLING


def element_count(layers):
    return sum(count for _, count in models.layer_sizes(layers))


CLOTHES, CIFAR, IMAGENET = (1, 28, 28), (3, 32, 32), (3, 224, 224)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "parameters"),
    [
        # As the papers and their usual implementations state them.
        ("alexnet", 1000, IMAGENET, 61_100_840),
        ("resnet-18", 1000, IMAGENET, 11_689_512),
        ("resnet50", 1000, IMAGENET, 25_557_032),
        ("efficientnet-b0", 1000, IMAGENET, 5_288_548),
        ("densenet169", 1000, IMAGENET, 14_149_480),
        ("gpt2-small", 50_257, (1024,), 124_439_808),
        # Those of the tasks, as their docstrings say.
        ("small-cnn", 10, CLOTHES, 297_095),
        ("gpt2-mini", 97, (128,), 822_144),
        ("word-embedding", 66, (91,), 8192 * 64 + 65 * 66),
        # For small images networks lose their first strides, not their blocks: a 3 x 3 for a 7 x 7
        # first convolution, and 10 for 1000 classes. DenseNet's stem has no normalisation either.
        ("efficientnet-b0", 10, CIFAR, 5_288_548 - 990 * 1281),
        ("resnet-18", 10, CIFAR, 11_689_512 - 990 * 513),
        ("resnet50", 10, CIFAR, 25_557_032 - 64 * 3 * (49 - 9) - 990 * 2049),
        ("densenet169", 10, CIFAR, 14_149_480 - 64 * 3 * (49 - 9) - 128 - 990 * 1665),
    ],
)
def test_a_model_has_as_many_weights_as_published(name, classes, shape, parameters):
    layers = models.layer_map(name, classes=classes, input_shape=shape)
    assert element_count(layers) == parameters
    if classes >= 1000:
        assert MODELS[name].published == (classes, shape)


@pytest.mark.parametrize("name", IMAGES)
def test_on_the_meta_device_every_image_model_gives_logits_for_small_and_large_images(name):
    for side in (32, 224):
        with torch.device("meta"):
            model = models.build(name, 0, classes=36, input_shape=(1, side, side)).eval()
            assert model(torch.empty(2, 1, side, side)).shape == (2, 36)


@pytest.mark.parametrize("name", IMAGES)
def test_a_new_image_model_tells_images_apart(name):
    """One whose signal vanishes from layer to layer learns nothing at any rate."""
    model = models.build(name, 0, classes=10, input_shape=(1, 32, 32)).train()
    with torch.no_grad():
        logits = model(torch.randn(8, 1, 32, 32, generator=torch.Generator().manual_seed(1)))
    assert logits.std(dim=0).mean() > 0.003


@pytest.mark.parametrize("name", TRAINABLE_HERE)
def test_the_layer_map_is_the_flat_gradient(name):
    layers = models.layer_map(name, **size(name))
    model = models.build(name, 0, **size(name))
    inputs, labels, task = batch(name)
    flat = np.full(element_count(layers), np.nan, dtype=np.float32)
    task.loss(model(inputs), labels).backward()
    flatten_gradient([tensor for _, tensor in models.trained(model)], flat)
    place = 0
    gradients: dict[str, Any] = dict(model.named_parameters())
    assert len({name for name, _ in layers}) == len(layers) == len(gradients)
    for layer, shape in layers:
        part = flat[place : place + math.prod(shape)].reshape(shape)
        np.testing.assert_array_equal(part, gradients[layer].grad.numpy())
        place += math.prod(shape)
    assert place == len(flat)


@pytest.mark.parametrize("name", TRAINABLE_HERE)
def test_replicas_are_equal_learn_equally_and_depend_on_the_seed(name):
    def trained(seed):
        model = models.build(name, seed, **size(name))
        inputs, labels, task = batch(name)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            optimiser.zero_grad()
            task.loss(model(inputs), labels).backward()
            optimiser.step()
        return model.state_dict()

    first, same, other = trained(1), trained(1), trained(2)
    assert name != "small-cnn" or element_count(models.layer_map(name)) == 50_311
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_gpt2_sends_the_tensor_that_is_embedding_and_output_layer_once():
    model: Any = models.build("gpt2-tiny", 1, **TEXT)
    assert model.lm_head.weight is model.transformer.wte.weight
    shapes = [shape for _, shape in models.layer_map("gpt2-tiny", **TEXT)]
    assert shapes.count((97, 64)) == 1
    inputs, labels, task = batch("gpt2-tiny")
    task.loss(model(inputs), labels).backward()
    gradient = model.transformer.wte.weight.grad
    # Characters that do not occur have a gradient through the output layer alone.
    absent = [token for token in range(97) if token not in inputs]
    assert absent
    assert (gradient[absent].abs().sum(dim=1) > 0).all()


def test_workers_start_equal_and_drop_out_different_units():
    config = {"seed": 3, "training": {"model": "small-cnn", "dataset": "digits", "batch_size": 8}}
    model_and_data = ModelAndData(config)
    drawn = []
    for rank in (0, 1, 0):
        model = model_and_data.model(rank)
        drawn.append((next(model.parameters()).detach().clone(), torch.rand(4)))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert not torch.equal(drawn[0][1], drawn[1][1])
    assert torch.equal(drawn[0][1], drawn[2][1])


# A user's own.


USERS = """
import torch
from torch import nn
def good(classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))
def frozen(classes, input_shape):
    model = good(classes, input_shape)
    model[1].bias.requires_grad_(False)
    return model
def uses_values(classes, input_shape):
    model = good(classes, input_shape)
    assert model[1].weight.sum().item() != 0
    return model
def raises(classes, input_shape): raise KeyError("width")
def number(classes, input_shape): return 3
def double(classes, input_shape): return nn.Linear(1, 1).double()
def empty(classes, input_shape): return nn.Flatten()
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path


@pytest.mark.parametrize("function", ["good", "uses_values", "frozen"])
def test_a_user_s_model_is_found_beside_the_experiment_and_what_it_trains_is_sent(users, function):
    name = models.BUILDERS.locate(f"their_models.py:{function}", [users])
    assert name == f"{users}/their_models.py:{function}"
    bias = [] if function == "frozen" else [("1.bias", (10,))]
    assert models.layer_map(name, **COLOUR) == [("1.weight", (10, 3072)), *bias]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("their_models.py:raises", "their_models.py: line 14: KeyError: 'width'"),
        ("their_models.py:number", "returned int; valid: a torch.nn.Module"),
        ("their_models.py:double", "weight 'weight' is torch.float64; valid: torch.float32"),
        ("their_models.py:empty", "has no weights to train"),
    ],
)
def test_what_is_wrong_with_a_user_s_model_is_said_in_one_line(users, name, message):
    with pytest.raises(InputError) as caught:
        models.build(models.BUILDERS.locate(name, [users]), 0, **COLOUR)
    assert message in str(caught.value)
    assert "their_models" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_for_other_inputs_is_refused():
    with pytest.raises(InputError, match="gpt2-tiny: takes tokens"):
        models.build("gpt2-tiny", 0, **COLOUR)
    with pytest.raises(InputError, match="alexnet: images of 8 pixels are too small"):
        models.build("alexnet", 0)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "testbed.training.models.huggingface", None)
    with pytest.raises(InputError, match="'resnet50' needs the package"):
        models.build("resnet50", 0, **COLOUR)


class _Constant(torch.nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.bias = torch.nn.Parameter(logits)

    def forward(self, inputs):
        shape = inputs.shape if inputs.dim() == 2 else inputs.shape[:1]
        return self.bias.expand(*shape, -1)


def test_accuracy_is_the_share_of_right_answers():
    dataset = ModelAndData({"seed": 0, "training": {"dataset": "digits"}}).dataset
    logits = torch.zeros(10)
    logits[3] = 1
    right = float((dataset.test_labels[slice(None)] == 3).double().mean())
    assert dataset.task.evaluate(
        _Constant(logits), dataset.test_inputs, dataset.test_labels
    ) == pytest.approx(right)


def test_perplexity_of_a_guess_is_the_vocabulary_s_size():
    section = {"name": "stdlib-text", "test_sequences": 70}
    dataset = ModelAndData({"seed": 0, "training": {"dataset": section}}).dataset
    test_part = (dataset.test_inputs, dataset.test_labels)
    guess = dataset.task.evaluate(_Constant(torch.zeros(97)), *test_part)
    assert guess == pytest.approx(97, rel=1e-5)
    wrong = torch.full((97,), -1e4)
    wrong[96] = 0
    assert dataset.task.evaluate(_Constant(wrong), *test_part) == math.inf


def test_a_kept_map_of_a_published_model_is_exact_and_imports_no_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    published: dict[str, Any] = {"classes": 1000, "input_shape": (3, 224, 224)}
    made = models.layer_map("efficientnet-b0", **published)
    assert sum(size for _, size in models.layer_sizes(made)) == 5_288_548
    assert made == models.layer_map("efficientnet-b0", **published)
    for size in (COLOUR, published):
        kept = models.layer_map("efficientnet-b0", **size)
        assert (kept == made) is (size is published)
    code = (
        "import sys; from testbed.training import models;"
        "layers = models.layer_map('efficientnet-b0', classes=1000,"
        " input_shape=(3, 224, 224));"
        "print(len(layers), {'transformers', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(len(made)), "set()"]
