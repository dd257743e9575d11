"""The controller's file, written by hand. What is wrong in it: tests/cli/wrong_inputs.yaml."""

from pathlib import Path

import pytest

from controllers import lab_file
from tests.cli.test_verbs import python

EXAMPLE = Path(__file__).parents[2] / "controllers" / "by-hand.yaml"


def test_the_example_is_valid():
    document = lab_file.read(EXAMPLE)
    assert [each["kind"] for each in document["impairments"]] == ["police", "blackout", "burst"]
    assert len(document["impairments"][2]["at_s"]) == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [("none.yaml", None), ("a.json", "[1]")],
)
def test_an_unreadable_file_ends_the_controller_with_one_line_and_status_2(tmp_path, name, text):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    done = python("-m", "controllers", "--lab-file", path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{path}: ")
    assert done.stderr.count("\n") == 1
