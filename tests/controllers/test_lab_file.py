"""The controller's file, written by hand: what is said when it is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controllers import lab_file
from testbed.shared.yaml_input import InputError

EXAMPLE = Path(__file__).parents[2] / "controllers" / "by-hand.yaml"


def test_the_example_is_valid():
    document = lab_file.read(EXAMPLE)
    assert [each["kind"] for each in document["impairments"]] == ["police", "blackout", "burst"]
    assert len(document["impairments"][2]["at_s"]) == 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"switches": {}}, "switches: "),
        ({"port": 1}, "port: unknown key; valid: hosts, impairments,"),
        (
            {"impairments": [{"kind": "blackout", "at_s": [1], "duration_s": 1}]},
            "host: unknown host 'server'; valid: a, b",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_the_key(tmp_path, changes, expected):
    path = tmp_path / "hand.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE.read_text()), **changes}))
    with pytest.raises(InputError) as caught:
        lab_file.read(path)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("none.yaml", None), ("a.json", "[1]")],
)
def test_an_unreadable_file_ends_the_controller_with_one_line_and_status_2(tmp_path, name, text):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "controllers", "--lab-file", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"{path}: ")
    assert done.stderr.count("\n") == 1
