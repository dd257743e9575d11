"""Checks and prepares what training needs, before a lab is built without terminal and network."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, models
from testbed.training.datasets import splits
from testbed.training.settings import Training

Report = Callable[[str, int, int | None], None]  # called with data set, amount done, total


class Need(NamedTuple):
    """What a run with this seed trains on so many hosts, one of them the server."""

    training: Training
    hosts: int
    seed: int
    folder: Path | None = None

    @property
    def workers(self) -> int:
        return self.hosts - 1

    @property
    def validates(self) -> bool:
        return self.training.evaluate_on == "validation"

    @property
    def computes(self) -> bool:
        return self.training.pace.kind != "payload-only"

    @property
    def data(self) -> datasets.DatasetParameters:
        """The data set as this seed has it."""
        return self.training.dataset.of_run(self.seed)


def check(need: Need) -> None:
    """Raise ValueError for errors visible without loading: inputs, sizes of equal shares."""
    training = need.training
    entry = models.MODELS.get(training.model)
    takes, gives = entry.inputs if entry else None, training.dataset.inputs
    if takes and gives and takes != gives:
        fit = [name for name, model in models.MODELS.items() if model.inputs == gives]
        raise ValueError(
            f"training.model: {training.model!r} takes {takes}, but data set "
            f"{training.dataset.name!r} gives {gives}; valid: {', '.join(fit)}, ./FILE.py"
        )
    count = training.dataset.train_count()
    if count is not None and need.validates:
        count -= splits.most_held_out(count)
    if count is None or not isinstance(training.split, splits.Equal) or not need.computes:
        return
    smallest = count // need.workers
    if not smallest:
        raise ValueError(
            f"topology.workers: {need.workers}: more than the {count} training examples of data "
            f"set {training.dataset.name!r}; valid: up to {count}"
        )
    if training.batch_size > smallest:
        most = count // training.batch_size
        fewer = f", or topology.workers, here {need.workers}, up to {most}" if most else ""
        raise ValueError(
            f"training.batch_size: {training.batch_size}: larger than a worker's share of data set "
            f"{training.dataset.name!r}, {smallest} examples; valid: 1 to {smallest}{fewer}"
        )


def _is_even(need: Need) -> bool:
    """Whether the size of each share is known without loading; `check` has looked at it then."""
    return (
        isinstance(need.training.split, splits.Equal)
        and need.training.dataset.train_count() is not None
    )


def _check_shares(need: Need, dataset: datasets.Dataset) -> None:
    if need.validates:
        dataset = splits.validating(dataset, need.seed)
    found = splits.shares(need.training.split, dataset.groups, need.workers, need.seed)
    if need.computes:
        splits.require_batches(found, need.training.batch_size, need.training.split)


def prepare(needs: Iterable[Need], report: Report) -> None:
    """Fetch and make cached data sets, try users' own code, and check shares by loading."""
    prepared: dict[tuple[str, Path | None], datasets.Dataset | None] = {}
    built: set[tuple[Any, ...]] = set()
    for need in needs:
        if need.training.device == "cuda":
            _require_cuda()
        data = need.data
        key = (data.model_dump_json(), need.folder)
        by_user = need.training.dataset.inputs is None or need.training.model not in models.MODELS
        if key not in prepared:
            name = str(need.training.dataset.name)
            data.prepare(need.folder, lambda done, total, name=name: report(name, done, total))
            prepared[key] = data.load(need.folder) if by_user or not _is_even(need) else None
        dataset = prepared[key]
        if dataset is None:
            continue
        _check_shares(need, dataset)
        if by_user and (need.training.model, *key) not in built:
            built.add((need.training.model, *key))
            _try_model(need, dataset)


def _require_cuda() -> None:
    """Raise InputError when torch cannot use a GPU."""
    import torch

    if not torch.cuda.is_available():
        why = "this build of torch has no CUDA" if not torch.version.cuda else "torch finds no GPU"
        raise InputError(f"training.device: 'cuda': {why}; valid here: cpu")


def _try_model(need: Need, dataset: datasets.Dataset) -> None:
    """Build the model once and give it two test examples; its outputs must fit the labels."""
    import torch

    name = need.training.model
    model = models.build(name, need.seed, classes=dataset.classes, input_shape=dataset.input_shape)
    inputs, labels = dataset.test_inputs[slice(0, 2)], dataset.test_labels[slice(0, 2)]
    try:
        with torch.no_grad():
            logits = model.eval()(inputs)
    except Exception as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"model {name}: with inputs of shape {tuple(inputs.shape)} it raised "
            f"{type(error).__name__}: {told}"
        ) from error
    expected = (*labels.shape, dataset.classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != expected:
        given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(f"model {name}: gave {given}; valid: a tensor of shape {expected}")
