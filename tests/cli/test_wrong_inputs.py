"""Everything that a person can get wrong is answered in one line each, with status 2, at once.

`wrong_inputs.yaml` is the table. All of it runs in this process: no lab is built, nothing is left.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import controllers.__main__
import testbed.__main__
from testbed.machine import capabilities, steadiness
from testbed.run import runner

TABLE = yaml.safe_load(Path(__file__).with_name("wrong_inputs.yaml").read_text(encoding="utf-8"))
COUNTS = {"experiments": 133, "commands": 56, "lab_files": 15}


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in an empty folder; returns what it says, or fails."""

    def build(*_: Any, **__: Any) -> None:
        pytest.fail("accepted: this would have built a lab")

    def run(main: Any, words: list[str], files: dict[str, str | bytes]) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        monkeypatch.setattr(runner, "attempts", build)
        monkeypatch.setattr(capabilities, "require", build)
        monkeypatch.setattr(steadiness, "probe", build)
        for name, content in files.items():
            text = content if isinstance(content, bytes) else content.encode()
            (tmp_path / name).write_bytes(text)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 2, said
        assert said.out == ""
        assert {path.name for path in tmp_path.iterdir()} == set(files), "something was made"
        return said.err.rstrip("\n")

    return run


def edited(base: str, case: dict[str, str]) -> str:
    if not case["replace"]:
        return f"{base}{case['by']}\n"
    assert case["replace"] in base
    return base.replace(case["replace"], case["by"], 1)


def check(said: str, expected: str | list[str], before: str = "lab: ") -> None:
    lines, wanted = said.split("\n"), [expected] if isinstance(expected, str) else expected
    assert len(lines) == len(wanted), said
    for line, each in zip(lines, wanted, strict=True):
        pattern = re.escape(before + each).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, line), f"\n said:     {line}\n expected: {each}"
        assert "pydantic" not in line
        assert not re.search(r"\^\[|Input should|valid (dictionary|list|integer|string)\b", line)


def names(cases: list[dict[str, str]]) -> list[str]:
    return [str(case.get("command") or case["by"])[:60] for case in cases]


@pytest.mark.parametrize("part", COUNTS)
def test_the_table_is_as_long_as_it_was(part: str) -> None:
    assert len(TABLE[part]) >= COUNTS[part]


@pytest.mark.parametrize("case", TABLE["experiments"], ids=names(TABLE["experiments"]))
def test_a_wrong_experiment(answer: Any, case: dict[str, str]) -> None:
    text = edited(TABLE["experiment"], case)
    line = answer(testbed.__main__.main, ["plan", "small.yaml"], {"small.yaml": text})
    check(line, case["says"])


@pytest.mark.parametrize("case", TABLE["commands"], ids=names(TABLE["commands"]))
def test_a_wrong_command(answer: Any, case: dict[str, str]) -> None:
    files = {"small.yaml": TABLE["experiment"]}
    line = answer(testbed.__main__.main, shlex.split(case["command"]), files)
    check(line, case["says"])


@pytest.mark.parametrize("case", TABLE["lab_files"], ids=names(TABLE["lab_files"]))
def test_a_wrong_lab_file(answer: Any, case: dict[str, str]) -> None:
    text = edited(TABLE["lab_file"], case)
    line = answer(controllers.__main__.main, ["--lab-file", "lab.yaml"], {"lab.yaml": text})
    check(line, case["says"], before="")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty; valid: a mapping of keys to values"),
        (b"# nothing yet\n", "empty; valid: a mapping of keys to values"),
        (b"- a\n", "must be a mapping of keys to values"),
        (b"name: caf\xe9\n", "line 1: not UTF-8 text"),
        ("name: small\n".encode("utf-16"), "line 1: not UTF-8 text"),
        (b"name: a\nrounds: 1\x000\n", "line 2: the character U+0000, which YAML forbids"),
        (b"rounds: " + 5000 * b"9", "line 1: rounds: a number of 5000 digits; valid: up to 60"),
        (b"rounds: " + 3000 * b"[" + 3000 * b"]", "line 1: nested deeper than 40 levels"),
        (b"rounds: " + 500_000 * b"[", "line 1: nested deeper than 40 levels"),
        (b"a: 1\n" * 300_000, "larger than 1048576 bytes"),
        (
            b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % above] * 9))
                for above, name in zip(b"abcdefg", b"bcdefgh", strict=True)
            ),
            "line ...: more than 100000 values until here",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_file_of_the_wrong_bytes(answer: Any, content: bytes, expected: str) -> None:
    line = answer(testbed.__main__.main, ["plan", "small.yaml"], {"small.yaml": content})
    check(line, f"small.yaml: {expected}")


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    from testbed import experiment
    from testbed.shared.input_error import InputError

    path = tmp_path / "results.py"
    path.touch()
    with pytest.raises(InputError, match=r"results\.py: not a YAML file; valid: FILE\.yaml, FILE"):
        experiment.load(str(path))


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    from testbed import experiment
    from testbed.shared.input_error import InputError

    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match=r"folder\.yaml: not a file$"):
        experiment.load(str(tmp_path / "folder.yaml"))
