"""A baseline is what a trivial model reaches on the test part: less is nothing learnt."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from testbed.shared.input_error import InputError
from testbed.training.datasets import cache, splits
from testbed.training.datasets.base import VOCABULARY_OF_WORDS, Dataset, Examples, digest

_FORMAT = 1  # raise it when what is computed below changes
_STEPS, _BATCH, _RATE = 1000, 128, 0.01  # of the linear model: Adam, whose rate falls to zero


_MOST_WEIGHTS = 1_000_000  # of a linear model: a larger one would take minutes


def of(dataset: Dataset) -> float | None:
    """The accuracy of a linear model, or the perplexity of a table of bigrams; it is cached.

    None for data of a user's own class, which could not be told from others, or too large.
    """
    weights = math.prod(dataset.input_shape) * dataset.classes
    if "sha256" not in dataset.origin or weights > _MOST_WEIGHTS:
        return None

    def made() -> cache.Arrays:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as many as anywhere: sums have the same order
        try:
            language = dataset.task.metric == "perplexity"
            return {"value": np.array(_bigrams(dataset) if language else _linear(dataset))}
        finally:
            torch.set_num_threads(threads)

    tested = digest(dataset.test_labels[slice(None)].numpy())
    key = {"format": _FORMAT, "data": dataset.origin["sha256"], "test": tested}
    try:
        return float(cache.arrays("baseline", key, made)["value"])
    except InputError:  # no cache folder
        return float(made()["value"])


def _linear(dataset: Dataset) -> float:
    """Of pixels, or of how often each word is there."""
    model: nn.Module
    if dataset.task.inputs == "words":
        model = nn.EmbeddingBag(VOCABULARY_OF_WORDS, dataset.classes, mode="sum", padding_idx=0)
    else:
        linear = nn.Linear(math.prod(dataset.input_shape), dataset.classes)
        model = nn.Sequential(nn.Flatten(), linear)
    for tensor in model.parameters():
        nn.init.zeros_(tensor)
    optimiser = torch.optim.Adam(model.parameters())
    batches = splits.batches(np.arange(len(dataset.train_labels)), _BATCH, seed=0, rank=0)
    for step in range(_STEPS):
        chosen = next(batches)
        optimiser.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
        optimiser.zero_grad()
        logits = model(dataset.train_inputs[chosen])
        dataset.task.loss(logits, dataset.train_labels[chosen]).backward()
        optimiser.step()
    return dataset.task.evaluate(model, dataset.test_inputs, dataset.test_labels)


def _bigrams(dataset: Dataset) -> float:
    """Of each token after its predecessor; a pair that was never seen counts by its second."""
    classes = dataset.classes

    def pairs(inputs: Examples, labels: Examples) -> NDArray[np.int64]:
        both = inputs[slice(None)] * classes + labels[slice(None)]
        return both.numpy().reshape(-1)

    seen, counts = np.unique(pairs(dataset.train_inputs, dataset.train_labels), return_counts=True)
    of_first = np.bincount(seen // classes, counts, classes)
    of_second = np.bincount(seen % classes, counts, classes) + 1
    tested = pairs(dataset.test_inputs, dataset.test_labels)
    place = np.searchsorted(seen, tested).clip(max=len(seen) - 1)
    count = np.where(seen[place] == tested, counts[place], 0)
    share = (count + of_second[tested % classes] / of_second.sum()) / (
        of_first[tested // classes] + 1
    )
    return math.exp(-np.log(share).mean())
