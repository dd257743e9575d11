"""Everything that a person can get wrong is answered in one line each, with status 2, at once.

`wrong_inputs.yaml` is the table. All of it runs in this process: no lab is built, nothing is left.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import controllers.__main__
import testbed.__main__
from testbed.machine import capabilities, steadiness
from testbed.run import runner

TABLE = yaml.safe_load(Path(__file__).with_name("wrong_inputs.yaml").read_text(encoding="utf-8"))


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


def _lines(count: int, line: str) -> str:
    return "".join(line.replace("N", str(number)) for number in range(count))


@pytest.mark.parametrize(
    ("replace", "by", "says"),
    [
        ("[1, 2]", f"{[*range(60_000)]}", "seeds: ...: must have at most 10000 entries"),
        ("[1, 2]", f"{[*range(10_000)]}\nfactors: {{ rounds: [9, 8] }}", "40,000 runs ..."),
        ("rounds: 10", _lines(70_000, "kN: 1\n"), "line ...: more than 1000 keys in one mapping"),
        ("  a:", _lines(5_000, "  aN: { protocol: dblp }\n") + "  a:", "line ...: arms: more ..."),
        ("name: small", "? " + 900_000 * "k" + "\n: 1", "line 1: a key of 900000 characters; ..."),
        ("{ protocol: tcp }", f"{{ protocol: {900_000 * 'd'} }}", "arms.b.protocol: unknown ..."),
        (
            "rounds: 10",
            "rounds: 10\nfactors:\n" + _lines(20, f"  fN: {[*range(10)]}\n"),
            "factors: 100,000,000,000,000,000,000 points; valid: up to 2,000",
        ),
        (
            "  - {",
            _lines(2_000, "  - { kind: loss, name: lN, rounds: [1], q: 0.5 }\n") + "  - {",
            "impairments: ...: must have at most 200 entries",
        ),
        (
            "rounds: 10",
            "rounds: 1000000\nfactors: { 'impairments.0.rounds': [{ every: 1 }] }",
            "factors: impairments.0.rounds: hits 1,000,000 rounds; valid: up to 100,000",
        ),
        (
            "{ name: star, workers: 2 }",
            "{ name: clos, workers: 20000, hosts_per_leaf: 1, spines: 64 }\n"
            "training: { pace: { kind: payload-only, compute_s: 0.1 } }",
            "... more than 100,000 links; valid: fewer hosts or switches",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_too_large_is_refused_before_it_is_expanded(
    answer: Any, replace: str, by: str, says: str
) -> None:
    text = edited(TABLE["experiment"], {"replace": replace, "by": by})
    began_s = time.process_time()
    line = answer(testbed.__main__.main, ["plan", "small.yaml"], {"small.yaml": text})
    assert time.process_time() - began_s < 10  # minutes and days, where nothing is bounded
    check(line, f"small.yaml: {says}")
    assert len(line) < 5_000


def test_ten_thousand_dots_in_an_option_are_refused(answer: Any) -> None:
    words = ["plan", "small.yaml", "--set", "a" + 10_000 * ".a" + "=1"]
    line = answer(testbed.__main__.main, words, {"small.yaml": TABLE["experiment"]})
    check(line, "--set a.a...: 10000 dots; valid: up to 40")


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
