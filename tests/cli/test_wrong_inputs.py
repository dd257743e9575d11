"""Everything that a person can get wrong is answered in one line each, with status 2, at once.

`wrong_inputs.yaml` is the table. All of it runs in this process: no lab is built, nothing is left.
"""

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import testbed.__main__
from testbed.machine import capabilities, steadiness
from testbed.run import runner

TABLE = yaml.safe_load(Path(__file__).with_name("wrong_inputs.yaml").read_text(encoding="utf-8"))
EXPERIMENT = TABLE["experiment"]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in an empty folder; returns what it says, or fails."""

    def build(*_: Any, **__: Any) -> None:
        pytest.fail("accepted: this would have built a lab")

    def run(words: list[str], content: str | bytes) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        monkeypatch.setattr(runner, "attempts", build)
        monkeypatch.setattr(capabilities, "require", build)
        monkeypatch.setattr(steadiness, "probe", build)
        text = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "small.yaml").write_bytes(text)
        with pytest.raises(SystemExit) as ended:
            testbed.__main__.main()
        answered = capsys.readouterr()
        assert ended.value.code == 2, answered
        assert answered.out == ""
        assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"], "something was made"
        return answered.err.rstrip("\n")

    return run


@pytest.fixture
def plan(answer: Any):
    return lambda content: answer(["plan", "small.yaml"], content)


def edited(base: str, place: str, by: str) -> str:
    old = TABLE["places"].get(place, place)
    if not old:
        return f"{base}{by}\n"
    assert old in base
    return base.replace(old, by, 1)


def check(answered: str, answers: list[str], before: str = "lab: small.yaml: ") -> None:
    lines = answered.split("\n")
    assert len(lines) == len(answers), answered
    for line, expected in zip(lines, answers, strict=True):
        pattern = re.escape(before + expected).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, line), f"\n said:     {line}\n expected: {expected}"
        assert "pydantic" not in line and len(line) < 5_000
        assert not re.search(r"\^\[|Input should|valid (dictionary|list|integer|string)\b", line)


def cases(part: str) -> list[Any]:
    return [pytest.param(case, id=" ".join(case[:2])[:60]) for case in TABLE[part]]


@pytest.mark.parametrize("case", cases("experiments"))
def test_a_wrong_experiment(plan: Any, case: list[str]) -> None:
    place, by, *answers = case
    check(plan(edited(EXPERIMENT, place, by)), answers)


@pytest.mark.parametrize("case", cases("commands"))
def test_a_wrong_command(answer: Any, case: list[str]) -> None:
    command, *answers = case
    check(answer(shlex.split(command), EXPERIMENT), answers, "lab: ")


def lines(count: int, line: str) -> str:
    return "".join(line.replace("N", str(number)) for number in range(count))


ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]\n"
    for above, name in zip("abcdefg", "bcdefgh", strict=True)
)
IN_LARGE = [
    ("seeds", f"{[*range(60_000)]}", "seeds: ...: must have at most 10000 entries"),
    ("seeds", f"{[*range(10_000)]}\nfactors: {{ rounds: [9, 8] }}", "40,000 runs ..."),
    ("rounds", lines(70_000, "kN: 1\n"), "line ...: more than 1000 keys in one mapping"),
    ("  a:", lines(5_000, "  aN: { protocol: dblp }\n") + "  a:", "line ...: arms: more ..."),
    ("name: small", "? " + 900_000 * "k" + "\n: 1", "line 1: a key of 900000 characters; ..."),
    ("tcp", f"{{ protocol: {900_000 * 'd'} }}", "arms.b.protocol: unknown ..."),
    (
        "rounds",
        "rounds: 10\nfactors:\n" + lines(20, f"  fN: {[*range(10)]}\n"),
        "factors: 100,000,000,000,000,000,000 points; valid: up to 2,000",
    ),
    (
        "  - {",
        lines(2_000, "  - { kind: loss, name: lN, rounds: [1], q: 0.5 }\n") + "  - {",
        "impairments: ...: must have at most 200 entries",
    ),
    (
        "rounds",
        "rounds: 1000000\nfactors: { 'impairments.0.rounds': [{ every: 1 }] }",
        "factors: impairments.0.rounds: hits 1,000,000 rounds; valid: up to 100,000",
    ),
    (
        "topology",
        "{ name: clos, workers: 20000, hosts_per_leaf: 1, spines: 64 }\n"
        "training: { pace: { kind: payload-only, compute_s: 0.1 } }",
        "... more than 100,000 links; valid: fewer hosts or switches",
    ),
]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty; valid: a mapping of keys to values"),
        (b"- a\n", "must be a mapping of keys to values"),
        (b"name: caf\xe9\n", "line 1: not UTF-8 text"),
        (b"name: a\nrounds: 1\x000\n", "line 2: the character U+0000, which YAML forbids"),
        (b"name: a\n...\n%YAML 1.1\n", "line 4: did not find expected <document start>"),
        (b"rounds: " + 5000 * b"9", "line 1: rounds: a number of 5000 digits; valid: up to 60"),
        (b"rounds: " + 500_000 * b"[", "line 1: nested deeper than 40 levels"),
        (b"a: 1\n" * 300_000, "larger than 1048576 bytes"),
        (ALIASES, "line ...: more than 100000 values until here"),
        *((edited(EXPERIMENT, place, by), says) for place, by, says in IN_LARGE),
    ],
    ids=lambda case: str(case)[-40:],
)
def test_damaged_or_large_input_is_refused(plan: Any, content: str | bytes, says: str) -> None:
    began_s = time.process_time()
    check(plan(content), [says])
    assert time.process_time() - began_s < 10  # minutes and days, where nothing is bounded


def test_ten_thousand_dots_in_an_option_are_refused(answer: Any) -> None:
    words = ["plan", "small.yaml", "--set", "a" + 10_000 * ".a" + "=1"]
    check(answer(words, EXPERIMENT), ["--set a.a...: 10000 dots; valid: up to 40"], "lab: ")
