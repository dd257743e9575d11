"""Data sets: what is in them, that they are the same every time, and what may be wrong."""

import functools
import hashlib
import http.server
import io
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from testbed.training import datasets, preparation
from testbed.training.datasets import cache
from testbed.training.datasets.base import check_labels
from testbed.training.datasets.stdlib_text import OTHER, VOCABULARY
from testbed.yaml_input import InputError

GLYPHS = {"name": "glyphs", "size": 500}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bounded-loss-testbed"


def everything(dataset):
    parts = (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels)
    return [part[slice(None)] for part in parts]


def test_digits_are_normalised_to_the_bit_as_torch_would():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    images = torch.from_numpy(bunch.images[order].astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[order].astype(np.int64))
    images = (images - images[359:].mean()) / images[359:].std()
    expected = [images[359:], labels[359:], images[:359], labels[:359]]
    found = everything(datasets.load("digits"))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_digits_are_these_digits():
    dataset = datasets.load("digits")
    assert dataset.facts["sha256"] == (
        "aa844f098fb6fb4fe8988029283bc0ffd162dcacf4a503454fac8b120ce8c63d"
    )
    assert (dataset.facts["train_examples"], dataset.facts["test_examples"]) == (1438, 359)


def test_glyphs_are_normalised_images_of_all_classes():
    dataset = datasets.load(GLYPHS)
    train_inputs, train_labels, test_inputs, test_labels = everything(dataset)
    assert train_inputs.shape == (400, 1, 32, 32)
    assert test_inputs.shape == (100, 1, 32, 32)
    assert train_inputs.dtype == torch.float32
    assert abs(float(train_inputs.mean())) < 1e-4
    assert abs(float(train_inputs.std()) - 1) < 1e-3
    both = torch.cat([train_labels, test_labels])
    assert dataset.classes == 36
    counts = torch.bincount(both)
    assert len(counts) == 36
    assert counts.max() - counts.min() <= 1
    # No test image is also a training image.
    known = {row.tobytes() for row in train_inputs.numpy()}
    assert not known & {row.tobytes() for row in test_inputs.numpy()}


def test_a_glyph_looks_more_like_its_own_class_than_like_others():
    dataset = datasets.load({**GLYPHS, "size": 2000})
    inputs, labels, tests, test_labels = everything(dataset)
    means = torch.stack([inputs[labels == each].mean(dim=0) for each in range(36)]).flatten(1)
    nearest = torch.cdist(tests.flatten(1), means).argmin(dim=1)
    assert float((nearest == test_labels).float().mean()) > 5 / 36


def test_glyphs_depend_on_their_parameters_alone_and_are_kept(own_cache):
    first = datasets.load(GLYPHS).facts["sha256"]
    (kept,) = own_cache.glob("glyphs-*.npz")
    written = kept.stat().st_mtime_ns
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert kept.stat().st_mtime_ns == written
    kept.unlink()
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert datasets.load({**GLYPHS, "seed": 1}).facts["sha256"] != first
    assert datasets.load({**GLYPHS, "noise": 0.0}).facts["sha256"] != first
    assert all(path.suffix == ".npz" for path in own_cache.iterdir())


@pytest.mark.parametrize("damage", ["cut off", "one bit", "something else"])
def test_a_damaged_file_in_the_cache_is_made_again(own_cache, damage):
    first = datasets.load(GLYPHS).facts["sha256"]
    (kept,) = own_cache.glob("glyphs-*.npz")
    content = bytearray(kept.read_bytes())
    if damage == "cut off":
        del content[len(content) // 2 :]
    elif damage == "one bit":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray(b"text")
    kept.write_bytes(content)
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert kept.read_bytes() != content


def test_a_cache_that_cannot_be_made_is_named(own_cache):
    own_cache.parent.write_text("a file")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        datasets.load(GLYPHS)


def test_characters_without_a_font_are_refused():
    with pytest.raises(InputError, match="no font has all of the characters"):
        datasets.load({**GLYPHS, "characters": "AB\U0001f9ff"})


def test_text_is_source_code_and_labels_are_the_next_characters():
    dataset = datasets.load({"name": "stdlib-text", "sequence_length": 40, "test_sequences": 50})
    assert dataset.input_shape == (40,)
    chosen = np.arange(2000)
    inputs, labels = dataset.train_inputs[chosen], dataset.train_labels[chosen]
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    text = "".join((VOCABULARY + "?")[token] for token in inputs.flatten().tolist())
    assert "import " in text
    assert "\n    return " in text
    assert float((inputs == OTHER).float().mean()) < 0.01
    assert len(dataset.test_inputs) == 50
    assert dataset.facts["test_files"] > 10
    assert len(dataset.groups) == len(dataset.train_inputs)
    assert len(np.unique(dataset.groups)) > 50


def test_text_hash_is_that_of_the_sources_whatever_the_sequence_length():
    short, long = (
        datasets.load({"name": "stdlib-text", "sequence_length": length}) for length in (20, 200)
    )
    assert short.facts["sha256"] == long.facts["sha256"]
    assert long.facts["train_examples"] * 10 == pytest.approx(
        short.facts["train_examples"], rel=0.01
    )


# CIFAR-10's binary form, small.


def records(seed, count=6):
    random = np.random.default_rng(seed)
    content = random.integers(0, 256, (count, 3073), dtype=np.uint8)
    content[:, 0] = np.arange(count) % 10
    return content


def batch_files():
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    return {name: records(seed) for seed, name in enumerate(names)}


def archive(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = content.nbytes
            tar.addfile(member, io.BytesIO(content.tobytes()))
    return stream.getvalue()


@pytest.fixture
def server(tmp_path):
    """A web server for the files below tmp_path/web, on this machine alone."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/cut.tar.gz":
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
            else:
                super().do_GET()

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def prepared(section):
    progress = []
    parameters = datasets.parameters(section)
    parameters.prepare(None, lambda done, total: progress.append((done, total)))
    return parameters.load(None), progress


@pytest.mark.parametrize("over", ["http", "file"])
def test_cifar10_is_downloaded_once_verified_and_read(server, own_cache, over):
    folder, address = server
    content = archive(batch_files())
    (folder / "a.tar.gz").write_bytes(content)
    url = f"{address}/a.tar.gz" if over == "http" else (folder / "a.tar.gz").as_uri()
    section = {"name": "cifar10", "url": url, "sha256": hashlib.sha256(content).hexdigest()}
    dataset, progress = prepared(section)
    assert progress[-1] == (len(content), len(content))
    train = np.concatenate([records(seed) for seed in range(5)])
    pixels = train[:, 1:].reshape(-1, 3, 32, 32).astype(np.float64)
    expected = (pixels - pixels.mean(axis=(0, 2, 3), keepdims=True)) / pixels.std(
        axis=(0, 2, 3), ddof=1, keepdims=True
    )
    found, labels, *_ = everything(dataset)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    assert labels.tolist() == train[:, 0].tolist()
    (folder / "a.tar.gz").unlink()
    assert prepared(section)[0].facts["sha256"] == dataset.facts["sha256"]
    assert [path.name for path in own_cache.iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.tar.gz", "not kept: its SHA-256 is "),
        ("none.tar.gz", "not downloaded: "),
        ("cut.tar.gz", "not downloaded: .*1000"),
    ],
)
def test_nothing_is_kept_of_a_failed_download(server, own_cache, name, said):
    folder, address = server
    (folder / "a.tar.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=said) as caught:
        prepared({"name": "cifar10", "url": f"{address}/{name}"})
    assert "\n" not in str(caught.value)
    assert list(own_cache.iterdir()) == []


def test_without_a_network_the_reason_is_one_line(own_cache):
    with pytest.raises(InputError, match=r"not downloaded: .*refused"):
        prepared({"name": "cifar10", "url": "http://127.0.0.1:9/x.tar.gz"})
    with pytest.raises(InputError, match="valid schemes: https, http, file"):
        prepared({"name": "cifar10", "url": "ftp://127.0.0.1/x.tar.gz"})
    assert list(own_cache.iterdir()) == []


def write_batches(folder, **changes):
    folder.mkdir()
    for name, content in (batch_files() | changes).items():
        (folder / name).write_bytes(content.tobytes())


def test_cifar10_s_unpacked_files_are_checked_against_the_published_sums(tmp_path):
    write_batches(tmp_path / "c")
    with pytest.raises(InputError, match=r"data_batch_1.bin: its SHA-256 is .*, expected cee9165"):
        datasets.load({"name": "cifar10", "directory": "c"}, tmp_path)
    dataset = datasets.load({"name": "cifar10", "directory": "c", "verify": False}, tmp_path)
    assert dataset.facts["train_examples"] == 30


def test_what_is_wrong_with_cifar10_files_is_named(tmp_path):
    bad = records(9)
    bad[4, 0] = 11
    write_batches(tmp_path / "labels", **{"test_batch.bin": bad})
    write_batches(tmp_path / "short", **{"data_batch_2.bin": records(1)[:, :3000]})
    for folder, said in (
        ("labels", "cifar10, test part: the label of example 4 is 11; valid: 0 to 9"),
        ("short", "data_batch_2.bin has 18000 bytes; valid: a multiple of 3073"),
        ("none", "holds neither cifar-10-binary.tar.gz nor data_batch_1.bin"),
    ):
        section = {"name": "cifar10", "directory": folder, "verify": False}
        with pytest.raises(InputError, match=said):
            datasets.load(section, tmp_path)


# A user's own.


def paint(path: Path, colour, size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_a_folder_of_images_is_read_by_class(tmp_path):
    for index in range(10):
        paint(tmp_path / "pictures" / "red" / f"{index}.png", (200 + index, 0, 0))
        paint(tmp_path / "pictures" / "blue" / f"{index}.jpg", (0, 0, 200 + index))
    section = {"name": "imagefolder", "directory": "pictures", "image_size": 16}
    dataset = datasets.load(section, tmp_path)
    inputs, labels, _, test_labels = everything(dataset)
    assert inputs.shape == (16, 3, 16, 16)
    assert dataset.facts["class_names"] == ["blue", "red"]
    assert len(test_labels) == 4
    assert ((inputs[:, 0].mean(dim=(1, 2)) > 0) == (labels == 1)).all()


def test_an_image_folder_may_have_its_own_split(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for name in "ab":
            for index in range(count):
                paint(tmp_path / part / name / f"{index}.png", (index, 0, 0))
    dataset = datasets.load({"name": "imagefolder", "directory": "."}, tmp_path)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (6, 4)


def test_what_is_wrong_with_an_image_folder_is_named(tmp_path):
    section = {"name": "imagefolder", "directory": "p"}
    with pytest.raises(InputError, match="no such folder"):
        datasets.load(section, tmp_path)
    (tmp_path / "p" / "one").mkdir(parents=True)
    with pytest.raises(InputError, match="has 1 folders; valid: 2 classes or more"):
        datasets.load(section, tmp_path)
    (tmp_path / "p" / "two").mkdir()
    with pytest.raises(InputError, match="one holds no images"):
        datasets.load(section, tmp_path)
    for name in ("one", "two"):
        paint(tmp_path / "p" / name / "x.png", (1, 2, 3))
    (tmp_path / "p" / "two" / "x.png").write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"two/x.png: not a readable image"):
        datasets.load(section, tmp_path)


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
    sys.modules.pop("their_data", None)


def test_a_user_s_data_are_images_or_text(users):
    section = {"name": "their_data:images", "arguments": {"count": 30}}
    dataset = datasets.load(section, users)
    assert (dataset.task.metric, dataset.classes, dataset.input_shape) == ("accuracy", 3, (1, 2, 2))
    assert len(dataset.train_inputs) == 30
    text = datasets.load("their_data:text", users)
    assert (text.task.metric, text.classes, text.input_shape) == ("perplexity", 5, (10,))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"name": "their_data:images", "arguments": {"worst": -1}, "classes": 3},
            "training part: the label of example 7 is -1; valid: 0 to 2",
        ),
        ({"name": "their_data:nan"}, "its inputs hold NaN or infinity"),
        ({"name": "their_data:two"}, "valid: a tuple of train inputs, train labels"),
        ({"name": "their_data:fails"}, "it raised OSError: disk on fire"),
        ({"name": "their_data:shapes"}, r"inputs have shape \(3, 2\) and labels \(3,\)"),
        ({"name": "their_data:halves"}, "labels are float32; valid: whole numbers"),
        ({"name": "their_data:images", "arguments": {"x": 1}}, "it raised TypeError"),
    ],
)
def test_what_is_wrong_with_a_user_s_data_is_said_in_one_line(users, section, said):
    with pytest.raises(InputError, match=said) as caught:
        datasets.load(section, users)
    assert str(caught.value).startswith(section["name"])
    assert "\n" not in str(caught.value)


def test_the_first_label_out_of_range_is_named():
    check_labels(np.array([0, 4, 2]), 5, "x")
    with pytest.raises(InputError, match="x: the label of example 1 is 5; valid: 0 to 4"):
        check_labels(np.array([0, 5, -1]), 5, "x")


@pytest.mark.parametrize("section", ["mnist", {"name": "glyphs", "sise": 3}, {"size": 3}, 7])
def test_an_unknown_data_set_or_key_is_refused(section):
    with pytest.raises(ValidationError):
        datasets.parameters(section)


# Before a lab is built.


def need(model, section, *, batch_size=8, workers=3, split=None, folder=None):
    return preparation.Need(
        model=model,
        dataset=datasets.parameters(section),
        split=split or datasets.Equal(),
        batch_size=batch_size,
        workers=workers,
        seed=1,
        folder=folder,
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            need("gpt2-tiny", "digits"),
            "takes tokens, but data set 'digits' gives images; valid: sm",
        ),
        (need("resnet50", "stdlib-text"), "takes images, but .* gives tokens; valid: gpt2-small"),
        (need("small-cnn", "digits", batch_size=480), "480: larger than a worker's .* 1 to 479"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_loaded(wanted, said):
    with pytest.raises(ValueError, match=said):
        preparation.check(wanted)


def test_a_user_s_model_is_tried_on_the_data_before_a_lab_is_built(users):
    (users / "their_models.py").write_text(
        "from torch import nn\n"
        "def fits(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "def wide(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(65, classes))\n"
        "def short(classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    preparation.prepare([need("their_models:fits", "digits", folder=users)], print)
    for name, said in (("wide", "it raised RuntimeError: "), ("short", r"gave \(2, 3\); valid: ")):
        with pytest.raises(InputError, match=said):
            preparation.prepare([need(f"their_models:{name}", "digits", folder=users)], print)
    sys.modules.pop("their_models", None)


def test_an_uneven_split_is_checked_with_the_run_s_seed():
    uneven = datasets.Dirichlet(alpha=0.01)
    with pytest.raises(InputError, match="or a larger alpha"):
        preparation.prepare([need("mlp", "digits", batch_size=100, workers=8, split=uneven)], print)


def test_files_in_the_cache_take_their_place_at_once_or_not_at_all(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(RuntimeError), cache.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with cache.replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
