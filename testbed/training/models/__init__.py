"""Models, built from a seed, and their layer maps, which need no built model.

To add one: a function `NAME(classes, input_shape)` in a file here and a line in `MODELS`; or a file
of your own with a function `build`, `model: ./mine.py`. The function returns a module that maps
(examples, *input_shape) to logits (examples, classes), or token numbers (sequences, tokens) to
(sequences, tokens, classes). A tensor that a model uses twice is one tensor in the gradient.
Buffers are not sent: each replica keeps its own. This package imports torch only when a model is
built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testbed.shared import own_code
from testbed.shared.registry import Registry
from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache

if TYPE_CHECKING:
    from torch import nn

DIGITS_CLASSES = 10
DIGITS_SHAPE = (1, 8, 8)
_IMAGENET = (1000, (3, 224, 224))
_PACKAGES = ("torch", "transformers")
LayerMap = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Entry:
    """A model of the registry: what builds it, and the classes and input shape as published."""

    builder: str  # module:function, in this package
    inputs: Literal["images", "tokens", "words"] = "images"
    published: tuple[int, tuple[int, ...]] | None = None


MODELS: dict[str, Entry] = {
    "small-cnn": Entry("convolutional:small_cnn"),
    "mlp": Entry("convolutional:mlp"),
    "alexnet": Entry("convolutional:alexnet", published=_IMAGENET),
    "resnet-18": Entry("huggingface:resnet18", published=_IMAGENET),
    "resnet50": Entry("huggingface:resnet", published=_IMAGENET),
    "efficientnet-b0": Entry("huggingface:efficientnet", published=_IMAGENET),
    "densenet169": Entry("convolutional:densenet169", published=_IMAGENET),
    "gpt2-small": Entry("huggingface:gpt2_small", "tokens", published=(50_257, (1024,))),
    "gpt2-tiny": Entry("huggingface:gpt2_tiny", "tokens"),
    "gpt2-mini": Entry("huggingface:gpt2_mini", "tokens"),
    "word-embedding": Entry("words:word_embedding", "words"),
}
BUILDERS: Registry[Any] = Registry(
    "model",
    {name: f"{__name__}.{entry.builder}" for name, entry in MODELS.items()},
    own="build",
)


def build(
    name: str,
    seed: int,
    *,
    classes: int = DIGITS_CLASSES,
    input_shape: Sequence[int] = DIGITS_SHAPE,
) -> nn.Module:
    """Build a model. Its weights depend on the seed alone, so all replicas start equal.

    InputError for a name that is unknown, unfit inputs, or a user's function that raised.
    """
    import torch

    torch.manual_seed(seed)
    shape = tuple(input_shape)
    if name in MODELS:
        return _built_in(name, classes, shape)
    make = BUILDERS.entry(name)
    with own_code.explained(own_code.split(name)[0]):
        model = make(classes=classes, input_shape=shape)
    return _checked(name, model)


def layer_map(
    name: str,
    *,
    classes: int = DIGITS_CLASSES,
    input_shape: Sequence[int] = DIGITS_SHAPE,
    cached: bool = True,
) -> LayerMap:
    """Name and shape of every trained tensor, in the order of the flat float32 gradient.

    The map of a built-in model is cached: the next call imports no large package.
    """
    shape = tuple(input_shape)
    if name not in MODELS or not cached:
        return _layer_map(name, classes, shape)
    sources = Path(__file__).parent.glob("*.py")
    key = {
        "model": name,
        "classes": classes,
        "shape": list(shape),
        "sources": {source.name: cache.file_digest(source) for source in sorted(sources)},
        **{package: _version(package) for package in _PACKAGES},
    }

    def as_arrays() -> cache.Arrays:
        names, shapes = zip(*_layer_map(name, classes, shape), strict=True)
        return {"names": np.array(names), "shapes": np.array([str(list(size)) for size in shapes])}

    try:
        stored = cache.arrays("layers", key, as_arrays)
    except InputError:  # there is no cache folder, or the model raises it again
        return _layer_map(name, classes, shape)
    pairs = zip(stored["names"], stored["shapes"], strict=True)
    return [(str(tensor), tuple(json.loads(str(size)))) for tensor, size in pairs]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""  # a model that needs it says so when it is built


def _layer_map(name: str, classes: int, input_shape: tuple[int, ...]) -> LayerMap:
    import torch

    try:
        with torch.device("meta"):
            model = build(name, 0, classes=classes, input_shape=input_shape)
    except InputError:
        if name in MODELS:
            raise
        model = build(name, 0, classes=classes, input_shape=input_shape)
    return [(layer, tuple(tensor.shape)) for layer, tensor in trained(model)]


def scaled(layers: LayerMap, scale: float) -> LayerMap:
    """A map with the same layers, each with `scale` times the elements."""
    if scale == 1:
        return list(layers)
    return [(name, (max(1, round(scale * math.prod(shape))),)) for name, shape in layers]


def layer_sizes(layers: LayerMap) -> list[tuple[str, int]]:
    """Name and element count of each layer of a map; an element is four bytes on the wire."""
    return [(name, math.prod(shape)) for name, shape in layers]


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Name and tensor of every trained weight, each once, in the order of the flat gradient."""
    return [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]


def _built_in(name: str, classes: int, shape: tuple[int, ...]) -> nn.Module:
    import torch

    entry = MODELS[name]
    if len(shape) != (3 if entry.inputs == "images" else 1):
        raise InputError(f"model {name}: takes {entry.inputs}, not inputs of shape {shape}")
    try:
        model: Any = BUILDERS.entry(name)(classes, shape)
    except ValueError as error:
        raise InputError(f"model {name}: {error}") from None
    # In this order a processor evaluates the small CNN in two thirds of the time.
    order = torch.channels_last if entry.inputs == "images" else torch.contiguous_format
    built: nn.Module = model.to(memory_format=order)
    return built


def _checked(name: str, model: object) -> nn.Module:
    import torch
    from torch import nn

    if not isinstance(model, nn.Module):
        raise InputError(f"{name}: returned {type(model).__name__}; valid: a torch.nn.Module")
    weights = trained(model)
    if not weights:
        raise InputError(f"{name}: the model has no weights to train")
    for weight, tensor in weights:
        if tensor.dtype != torch.float32:
            raise InputError(f"{name}: weight {weight!r} is {tensor.dtype}; valid: torch.float32")
    return model
