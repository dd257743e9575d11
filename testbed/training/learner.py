"""A worker's learning: computes gradients, applies updates, evaluates the model."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from testbed.shared import own_code
from testbed.training import models
from testbed.training.datasets.base import Dataset
from testbed.training.filling import Vector
from testbed.training.settings import OPTIMISERS


class Learner:
    """The object that a worker trains, by flat float32 vectors; this base class learns nothing."""

    def gradient(self, into: Vector) -> float | None:
        """Write the gradient of the next batch's mean loss; return that loss, or None."""
        return None

    def apply(self, update: Vector, learning_rate: float) -> None:
        """Take one optimiser step with `update` as the gradient."""

    def snapshot(self) -> Callable[[], None]:
        """Remember weights and the optimiser's state; returns what brings them back."""
        return lambda: None

    def evaluate(self) -> float | None:
        """Compute the task's metric on the test part; None where nothing is learnt."""
        return None

    def weights(self, into: Vector) -> None:
        """Write the trained weights."""
        into[:] = 0

    def save(self, path: Path) -> None:
        """Write the final weights."""


def build_optimiser(
    name: str,
    parameters: Sequence[nn.Parameter],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Build the optimiser `name`; leave out options that it does not take. ValueError."""
    return OPTIMISERS.build(
        name, {}, params=parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay
    )


class Replica(Learner):
    """A model with its optimiser and data; `batches` yields indices without end."""

    def __init__(
        self,
        model: nn.Module,
        *,
        dataset: Dataset,
        batches: Iterator[NDArray[np.int64]],
        optimiser: dict[str, Any],
        device: str = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._model = model.to(self._device)
        self._dataset = dataset
        self._batches = batches
        self._trained = [tensor for _, tensor in models.trained(self._model)]
        self._optimiser = build_optimiser(parameters=self._trained, **optimiser)

    def gradient(self, into: Vector) -> float:
        chosen = next(self._batches)
        self._model.zero_grad(set_to_none=True)
        inputs = self._dataset.train_inputs[chosen].to(self._device)
        labels = self._dataset.train_labels[chosen].to(self._device)
        loss = self._dataset.task.loss(self._outputs(inputs, labels), labels)
        loss.backward()
        flatten_gradient(self._trained, into)
        return loss.item()

    def _outputs(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The model's outputs; InputError for such as no loss can be computed of."""
        outputs: torch.Tensor = self._model(inputs)
        classes = self._dataset.classes
        if not (
            isinstance(outputs, torch.Tensor)
            and outputs.is_floating_point()
            and outputs.shape[:-1] == labels.shape
            and outputs.shape[-1] >= classes
        ):
            expected = f"a tensor of floats of shape {(*labels.shape, classes)}"
            raise own_code.unfit(self._model, "forward", outputs, expected)
        return outputs

    def apply(self, update: Vector, learning_rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        for tensor, part in _parts(self._trained, update):
            tensor.grad = torch.from_numpy(part.copy()).view_as(tensor).to(self._device)
        self._optimiser.step()

    def snapshot(self) -> Callable[[], None]:
        weights = [tensor.detach().clone() for tensor in self._trained]
        optimiser = copy.deepcopy(self._optimiser.state_dict())

        @torch.no_grad()
        def bring_back() -> None:
            for tensor, kept in zip(self._trained, weights, strict=True):
                tensor.copy_(kept)
            self._optimiser.load_state_dict(optimiser)

        return bring_back

    def evaluate(self) -> float:
        return self._dataset.task.evaluate(
            self._model, self._dataset.test_inputs, self._dataset.test_labels
        )

    def weights(self, into: Vector) -> None:
        for tensor, part in _parts(self._trained, into):
            part[:] = tensor.detach().cpu().numpy().reshape(-1)

    def save(self, path: Path) -> None:
        torch.save({name: tensor.cpu() for name, tensor in self._model.state_dict().items()}, path)


def _parts(trained: Sequence[nn.Parameter], flat: Vector) -> Iterator[tuple[nn.Parameter, Vector]]:
    """Each tensor with its part of a flat vector."""
    place = 0
    for tensor in trained:
        yield tensor, flat[place : place + tensor.numel()]
        place += tensor.numel()


def flatten_gradient(trained: Sequence[nn.Parameter], into: Vector) -> None:
    """Write the gradients of tensors one after the other; zeros for tensors without a gradient."""
    for tensor, part in _parts(trained, into):
        # A weight that this batch did not use has no gradient.
        part[:] = 0 if tensor.grad is None else tensor.grad.cpu().numpy().reshape(-1)


class PayloadOnly(Learner):
    """Gives random numbers of a model's size as gradients, and learns nothing."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._drawn = False

    def gradient(self, into: Vector) -> None:
        # Drawn once, because their values do not matter and drawing takes longer than sending.
        if not self._drawn:
            self._random.standard_normal(out=into, dtype=np.float32)
            self._drawn = True
