"""The tasks whose data are Debian packages: their parts, their files, and what may be missing."""

import gzip
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from testbed import experiment
from testbed.cli import execution, plan
from testbed.experiment import estimates
from testbed.run import requirements
from testbed.shared.input_error import InputError
from testbed.training import datasets
from testbed.training.datasets import bible, splits
from testbed.training.datasets.images import FashionMnist
from testbed.training.datasets.stdlib_text import VOCABULARY
from testbed.training.settings import Training
from testbed.training.state import RunContext
from tests.experiment.small import write

ALL = slice(None)
BIBLE = {"name": "bible", "sequence_length": 128}
TASKS = {"fashion-mnist": "small-cnn", "bible": "gpt2-mini", "verses": "word-embedding"}
PAYLOAD = {"model": "word-embedding", "dataset": "verses", "pace": "payload-only"}


def text_of(sequences):
    return "".join(VOCABULARY[token] for token in sequences[ALL].flatten().tolist())


def pixels_of(dataset, inputs):
    (mean,), (std,) = dataset.facts["mean"], dataset.facts["std"]
    return (inputs[ALL] * std + mean).round().to(torch.uint8).numpy()


def test_the_published_images_are_trained_on_but_for_the_last_which_validate():
    dataset = datasets.load("fashion-mnist")
    validating = splits.validating(dataset, 1)
    parts = (dataset.train_inputs, validating.test_inputs, dataset.test_inputs)
    assert [len(part) for part in parts] == [50_000, 10_000, 10_000]
    assert len(validating.train_inputs) == 50_000  # which seed validates makes no difference

    def published(part):
        folder = Path(FashionMnist.package.folder)
        content = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
        return np.frombuffer(content[16:], dtype=np.uint8).reshape(-1, 1, 28, 28)

    train = np.concatenate([pixels_of(dataset, inputs) for inputs in parts[:2]])
    assert np.array_equal(train, published("train"))
    assert np.array_equal(pixels_of(dataset, parts[2]), published("t10k"))
    counts = torch.bincount(dataset.test_labels[ALL]), torch.bincount(dataset.train_labels[ALL])
    assert set(counts[0].tolist()) == {1000} and counts[1].min() > 4900


def test_larger_images_have_a_border_of_zeros_around_the_same_ones():
    small, large = (datasets.load({"name": "fashion-mnist", "side": side}) for side in (28, 32))
    few = np.arange(64)
    pixels = pixels_of(large, large.test_inputs.only(few))
    assert np.array_equal(pixels[:, :, 2:-2, 2:-2], pixels_of(small, small.test_inputs.only(few)))
    assert not pixels[:, :, [0, 1, -2, -1]].any() and not pixels[..., [0, 1, -2, -1]].any()


def test_each_chapter_of_the_bible_is_in_one_part():
    section = {**BIBLE, "test_sequences": 100_000}
    dataset = datasets.load(section)
    validating = splits.validating(dataset, 1)
    texts = [
        text_of(part.train_inputs if train else part.test_inputs)
        for part, train in ((dataset, True), (dataset, False), (validating, False))
    ]
    whole = sum(map(len, texts))
    assert [round(len(text) / whole, 1) for text in texts] == [0.8, 0.1, 0.1]
    verses = ("God created the heaven", "The LORD is my shepherd", "Jesus wept")
    assert all(sum(verse in text for text in texts) == 1 for verse in verses)
    # A verse is a line, without its number.
    lines = [line for text in texts for line in text.splitlines()]
    assert "Jesus wept." in lines and not any(map(str.isdigit, "".join(texts)))
    inputs, labels = dataset.test_inputs[ALL], dataset.test_labels[ALL]
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    # From process to process, too, it is the same.
    assert datasets.load(BIBLE).facts["sha256"].startswith("b99dfef481acb555")
    assert len(np.unique(dataset.groups)) == 65  # one of a single chapter tests


def test_each_verse_is_in_one_part_with_its_book():
    dataset = datasets.load("verses")
    validating = splits.validating(dataset, 1)
    parts = (
        (dataset.train_inputs, dataset.train_labels),
        (dataset.test_inputs, dataset.test_labels),
        (validating.test_inputs, validating.test_labels),
    )
    assert [len(inputs) for inputs, _ in parts] == [24_800, 3132, 3170]  # of 31,102
    of_books = torch.bincount(torch.cat([labels[ALL] for _, labels in parts]))
    assert of_books[[0, 18, 65]].tolist() == [1533, 2461, 404]  # Genesis, Psalms, Revelation
    # The most frequent word, "the", has the first number.
    counts = torch.bincount(torch.cat([inputs[ALL].flatten() for inputs, _ in parts]))
    assert counts[2:].argmax() == 0 and 63_000 < counts[2] < 65_000 and len(counts) == 8192
    assert dataset.facts["sha256"].startswith("2a4b4b1a3d4d4ace")


@pytest.mark.parametrize(
    "section",
    [*TASKS, BIBLE, {"name": "fashion-mnist", "side": 32}, "digits", "stdlib-text"],
    ids=str,
)
def test_the_shape_is_known_without_the_data(section, monkeypatch, tmp_path):
    loaded = datasets.load(section)
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    assert datasets.parameters(section).shape() == (loaded.classes, loaded.input_shape)


@pytest.mark.parametrize(("name", "model"), TASKS.items())
def test_replicas_of_each_task_learn_for_three_rounds(name, model):
    keys = {"model": model, "batch_size": 4, "optimiser": "adam", "learning_rate": 0.003}
    training = Training(dataset=name, **keys).model_dump(mode="json")
    context = RunContext.without_network(
        {"rounds": 3, "seed": 1, "training": training}, ["server", "worker-1", "worker-2"]
    )
    learners = [context.learner(worker) for worker in context.workers]
    elements = sum(np.prod(shape) for _, shape in context.model_and_data.layers)
    gradients, weights = (
        [np.zeros(elements, dtype=np.float32) for _ in learners] for _ in range(2)
    )
    learners[0].weights(weights[0])
    before, losses = weights[0].copy(), list[float | None]()
    for _ in range(3):
        losses += [
            learner.gradient(gradient)
            for learner, gradient in zip(learners, gradients, strict=True)
        ]
        update = np.mean(gradients, axis=0)
        for learner in learners:
            learner.apply(update, 0.003)
    assert all(loss is not None and np.isfinite(loss) for loss in losses)
    # As uncertain as a guess among all classes, at first.
    assert losses[0] == pytest.approx(np.log(context.model_and_data.dataset.classes), rel=0.35)
    for learner, vector in zip(learners, weights, strict=True):
        learner.weights(vector)
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], before)
    if name == "verses":  # of the embedding alone only the batch's words have a gradient
        embedding = gradients[0][: 8192 * 64].reshape(8192, 64)
        rest = gradients[0][8192 * 64 :]
        assert 10 < np.count_nonzero(embedding.any(axis=1)) < 200
        assert np.count_nonzero(rest) > len(rest) / 4


def test_a_folder_of_files_takes_the_place_of_the_package(monkeypatch, tmp_path):
    expected = datasets.load("verses").facts
    shutil.copy("/usr/lib/bible.data", tmp_path)
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    monkeypatch.setattr(bible, "_PACKAGE", replace(bible._PACKAGE, folder="/nowhere"))
    assert datasets.load("verses").facts == expected
    with pytest.raises(InputError) as error:
        datasets.load("fashion-mnist")
    assert str(error.value).startswith(f"{tmp_path}/train-images-idx3-ubyte.gz: No such file")
    assert "Debian's package dataset-fashion-mnist, or a folder with train-" in str(error.value)
    assert str(error.value).endswith("in the environment variable LAB_DATA")
    content = bytearray((tmp_path / "bible.data").read_bytes())
    content[1000] ^= 1
    (tmp_path / "bible.data").write_bytes(content)
    with pytest.raises(InputError, match=r"bible\.data: its SHA-256 is \w{64}, expected 6c746c2ac"):
        datasets.load(BIBLE)


@pytest.fixture
def uninstalled(monkeypatch, tmp_path):
    """No package of the Bible is there; the entry script is what the test writes."""
    package = replace(bible._PACKAGE, folder=str(tmp_path / "lib"))
    monkeypatch.setattr(bible, "_PACKAGE", package)
    monkeypatch.setattr(bible.Verses, "package", package)
    script = tmp_path / "lab"
    monkeypatch.setattr(requirements, "_ENTRY_SCRIPT", script)

    def with_script(text):
        script.write_text(f"#!/bin/bash\ncd {tmp_path}\necho $* >>called\n{text}\n")
        script.chmod(0o755)
        return experiment.load(write(tmp_path, training=PAYLOAD))

    return with_script


def prepared(runs):
    screen = io.StringIO()
    execution.fetch_prerequisites(runs, Console(file=screen))
    return screen.getvalue()


def test_a_missing_package_is_named_and_installed_once(uninstalled, tmp_path):
    runs = uninstalled("mkdir lib && cp /usr/lib/bible.data lib")
    assert len(runs) > 1
    assert prepared(runs) == "installing Debian's package bible-kjv-text\n"
    assert prepared(runs) == ""
    assert (tmp_path / "called").read_text() == "--packages bible-kjv-text\n"


def test_a_package_that_cannot_be_installed_ends_it_in_one_line(uninstalled, monkeypatch, tmp_path):
    why = "missing system packages: bible-kjv-text - install them as root: apt-get update"
    runs = uninstalled(f"echo lab: something else >&2; echo 'lab: {why}' >&2; exit 2")
    with pytest.raises(InputError) as error:
        prepared(runs)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{runs[0].source}: {why}; valid: Debian's package bible-kjv-text, or")
    (tmp_path / "called").unlink()
    monkeypatch.setenv("LAB_DATA", str(tmp_path))  # then nothing is to be installed
    assert prepared(runs) == ""
    assert not (tmp_path / "called").exists()


SCRIPT = {"kind": "torchrun", "script": "train.py", "datasets": ["verses"]}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("training.dataset", {"training": PAYLOAD}),
        ("workload.datasets", {"workload": SCRIPT, "arms": {"a": {}}}),
    ],
)
def test_a_folder_without_the_data_is_refused_before_a_run(monkeypatch, tmp_path, key, changes):
    (tmp_path / "train.py").write_text("pass")
    runs = experiment.load(write(tmp_path, **changes))
    requirements.refuse(runs)
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    with pytest.raises(InputError) as error:
        requirements.refuse(runs)
    place = f"{runs[0].source}: {key}: verses: {tmp_path}/bible.data: no such file; valid: Debian's"
    assert str(error.value).startswith(place)


def test_data_of_a_script_are_read_before_a_run(monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("pass")
    runs = experiment.load(write(tmp_path, workload=SCRIPT, arms={"a": {}}))
    (tmp_path / "bible.data").write_bytes(b"another")
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"small\.yaml: .*bible\.data: its SHA-256 is"):
        prepared(runs)


def test_a_plan_names_the_package_that_a_run_will_install(uninstalled, tmp_path):
    runs = uninstalled("exit 1")
    screen = io.StringIO()
    chosen = plan.Chosen(results=tmp_path / "runs", selections=[])
    chosen.as_written = runs
    plan.show(chosen, Console(file=screen, width=200))
    line = "./lab run installs Debian's package bible-kjv-text, which is missing"
    assert line in screen.getvalue().splitlines()
    assert not (tmp_path / "called").exists()


def test_a_plan_needs_no_package(uninstalled, tmp_path):
    uninstalled("exit 1")
    for name, model in TASKS.items():
        training = {"model": model, "dataset": name}
        (run, *_) = experiment.load(write(tmp_path, training=training))
        assert estimates.Prediction(run).numbers.chunks > 300
    assert not (tmp_path / "called").exists()
