"""Learning tasks, independent of the model: the loss, and the metric of an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

Chosen = NDArray[np.int64] | slice
_EVALUATED_AT_ONCE = 32  # examples; bounds a worker's memory, and changes no answer


class Examples(Protocol):
    """Inputs or labels of the training or test part; indexing gives a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: Chosen) -> Tensor: ...


@dataclass(frozen=True)
class Task:
    """A kind of learning.

    Args:
        name: classification of inputs, or prediction of each next token.
        inputs: the kind of inputs that its models take.
        metric: the name of an evaluation's result; also the key in event logs.
    """

    name: Literal["classification", "language-modelling"]
    inputs: Literal["images", "tokens"]
    metric: Literal["accuracy", "perplexity"]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy in nats, per example or per token.

        Args:
            logits: (examples, classes), or (sequences, tokens, vocabulary).
            labels: class numbers, (examples,) or (sequences, tokens).
        """
        from torch.nn.functional import cross_entropy

        if labels.dim() > 1:
            return cross_entropy(logits.flatten(0, -2), labels.flatten())
        return cross_entropy(logits, labels)

    def evaluate(self, model: nn.Module, inputs: Examples, labels: Examples) -> float:
        """Compute the metric over the test part, with the model in evaluation mode.

        Accuracy is a share from 0 to 1. Perplexity is exp(mean cross entropy), at best 1, and
        infinite where it exceeds a float.
        """
        import torch

        device = next(model.parameters()).device
        right, entropy, count = 0, 0.0, 0
        model.eval()
        with torch.no_grad():
            for start in range(0, len(inputs), _EVALUATED_AT_ONCE):
                part = slice(start, start + _EVALUATED_AT_ONCE)
                expected = labels[part].to(device)
                logits = model(inputs[part].to(device))
                if self.metric == "accuracy":
                    right += int((logits.argmax(dim=-1) == expected).sum())
                else:
                    entropy += float(self.loss(logits, expected)) * expected.numel()
                count += expected.numel()
        model.train()
        if self.metric == "accuracy":
            return right / count
        try:
            return math.exp(entropy / count)
        except OverflowError:
            return math.inf


CLASSIFICATION = Task("classification", "images", "accuracy")
LANGUAGE_MODELLING = Task("language-modelling", "tokens", "perplexity")
