"""The documentation shows what works: commands parse, YAML is valid, Python runs."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from testbed.cli.verbs import app
from testbed.experiment import EXPERIMENTS, json_schema, load
from testbed.shared import yaml_input
from tests.documentation import shown
from tests.documentation.shown import ROOT, Block

ALL = [block for page in shown.PAGES for block in shown.blocks(page)]
VALIDATOR = jsonschema.Draft202012Validator(json_schema.build())
_COMMANDS = [
    *(command for block in ALL for command in block.commands),
    *(command for page in shown.PAGES for command in shown.inline_commands(page)),
]
_CALLS = sorted({tuple(call) for command in _COMMANDS for call in shown.lab_calls(command)})
_FORMER = ("resume",)  # kept results say by which command they were made
# A name in capitals stands for whatever the reader has.
_PLACEHOLDERS = {"NUMBER": "5", "N": "5"}


def _of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in ALL if block.kind in kinds]


def test_every_page_is_looked_at() -> None:
    assert {block.page for block in ALL} >= set(shown.RUN_PAGES)
    assert len(_CALLS) > 30
    assert {"run", "plan", "check", "report"} <= {call[0] for call in _CALLS if call}


@pytest.mark.parametrize("call", _CALLS, ids=" ".join)
def test_every_call_of_lab_that_is_shown_parses(call: tuple[str, ...]) -> None:
    name, *arguments = call
    if name in ("--help", "--version", "--packages", "VERB", *_FORMER):
        return
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    if hasattr(command, "commands"):  # such as `bench`
        if not arguments or arguments[0].startswith("-"):
            return
        name, *arguments = arguments
        command = command.commands[name]
    if arguments in (["--help"], ["-h"]):
        return
    arguments = [
        _PLACEHOLDERS.get(argument, argument)
        for argument in arguments
        if argument not in ("...", "…")
    ]
    arguments = ["--pcap=server" if argument == "--pcap" else argument for argument in arguments]
    if not arguments and any(param.required for param in command.params):
        return  # a sentence that names the verb, such as "`./lab shell` opens a prompt"
    command.make_context(name, arguments)
    experiment = next((argument for argument in arguments if not argument.startswith("-")), "")
    if name in ("run", "plan") and (EXPERIMENTS / f"{experiment}.yaml").is_file():
        _loads(command, name, arguments)


def _loads(command: Any, name: str, arguments: list[str]) -> None:
    """The experiment with these options is valid; files of the reader's own are left out."""
    options = command.make_context(name, arguments).params
    if ".py" in " ".join(arguments):
        return
    assert load(
        options["name"],
        overrides=options["settings"] or [],
        arms=[part for part in options["arms"].split(",") if part],
        seeds=options["seeds"],
        congestion_control=options["congestion_control"],
        profile=options["profile"],
    )


@pytest.mark.parametrize("block", _of_kind("console", "sh", "bash"))
def test_every_command_line_is_one(block: Block) -> None:
    assert block.commands, "a block of the shell without a command; output alone is `text`"
    script = "\n".join(block.commands)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("block", _of_kind("yaml"))
def test_every_yaml_block_is_valid(block: Block, tmp_path: Path) -> None:
    document = fragment = yaml.safe_load(block.text) or {}
    of_programs = fragment.get("workload", {}).get("kind") == "programs"
    if not of_programs and not {"rounds", "arms"} <= fragment.keys():
        document = _merged(yaml_input.read(EXPERIMENTS / "quick.yaml"), fragment)
    errors = VALIDATOR.iter_errors(document)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
    of_own_model = ":" in str(fragment.get("training", {}).get("model", ""))
    if ".py" in block.text or of_own_model or "from" in fragment.get("phases", {}):
        return  # names files, or a run, of the reader's own
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    load(str(path))


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A fragment in the place where it belongs; a section with another name replaces the old."""
    merged = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        names = {"name", "kind", "detector"}
        if isinstance(old, dict) and isinstance(value, dict) and not names & set(value):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


@pytest.mark.parametrize("block", _of_kind("python"))
def test_every_python_block_runs_or_at_least_imports_what_exists(
    block: Block, tmp_path: Path
) -> None:
    runs = not block.not_run and block.page not in shown.RUN_PAGES
    imports = [
        node
        for node in ast.walk(ast.parse(block.text, filename=str(block)))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    path = tmp_path / (block.file or "shown.py")
    path.write_text(block.text if runs else "\n".join(map(ast.unparse, imports)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
