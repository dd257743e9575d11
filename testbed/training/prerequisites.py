"""Prepares what training needs, before a lab is built without terminal and network."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, models
from testbed.training.datasets import splits
from testbed.training.settings import Training

Report = Callable[[str, int, int | None], None]  # called with data set, amount done, total


class Need(NamedTuple):
    """A run's training with this seed on so many hosts, one of them the server."""

    training: Training
    hosts: int
    seed: int
    folder: Path | None = None


def prepare(needs: Iterable[Need], report: Report) -> None:
    """Make what is cached, try users' own code, and check that shares hold a batch."""
    checked, tried = set(), set()
    latest: tuple[str, Path | None] | None = None
    dataset: datasets.Dataset | None = None  # the latest alone: each seed may have a large one
    # Seeds come outermost: each data set would be loaded again and again.
    for need in sorted(needs, key=lambda need: need.training.dataset.model_dump_json()):
        training = need.training
        whole = (training.model_dump_json(), need.hosts, need.seed, need.folder)
        if whole in checked:
            continue
        checked.add(whole)
        if training.device == "cuda":
            _require_cuda()
        data = training.dataset.of_run(need.seed)
        key = (data.model_dump_json(), need.folder)
        by_user = training.dataset.inputs is None or training.model not in models.MODELS
        computes = training.pace.kind != "payload-only"
        if key != latest:
            latest, dataset = key, None
            name = str(training.dataset.name)
            data.prepare(need.folder, lambda done, total, name=name: report(name, done, total))
        if not by_user and not computes:
            continue
        if dataset is None:
            dataset = data.load(need.folder)
        if computes:
            _prepare_learning(need, dataset)
        if by_user and (training.model, *key) not in tried:
            tried.add((training.model, *key))
            _try_model(need, dataset)


def _prepare_learning(need: Need, dataset: datasets.Dataset) -> None:
    training = need.training
    if training.evaluate_on == "validation":
        dataset = splits.validating(dataset, need.seed)
    shares = splits.shares(training.split, dataset.groups, need.hosts - 1, need.seed)
    splits.require_batches(shares, training.batch_size, training.split)
    from testbed.training.datasets import baselines  # imports torch

    baselines.of(dataset)


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        why = "this build of torch has no CUDA" if not torch.version.cuda else "torch finds no GPU"
        raise InputError(f"training.device: 'cuda': {why}; valid here: cpu")


def _try_model(need: Need, dataset: datasets.Dataset) -> None:
    import torch

    name = need.training.model
    model = models.build(name, need.seed, classes=dataset.classes, input_shape=dataset.input_shape)
    for mode, inputs, labels in (
        (model.eval, dataset.test_inputs[slice(0, 2)], dataset.test_labels[slice(0, 2)]),
        (model.train, dataset.train_inputs[slice(0, 2)], dataset.train_labels[slice(0, 2)]),
    ):
        try:
            with torch.no_grad():
                mode()
                logits = model(inputs)
        except Exception as error:
            raise InputError(
                f"model {name}: with inputs of shape {tuple(inputs.shape)} it raised "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        expected = (*labels.shape, dataset.classes)
        is_tensor = isinstance(logits, torch.Tensor)
        if not is_tensor or tuple(logits.shape) != expected:
            output = tuple(logits.shape) if is_tensor else type(logits).__name__
            raise InputError(f"model {name}: gave {output}; valid: a tensor of shape {expected}")
