"""The generated parts of the reference are current, name everything, and say what it means."""

from typing import Any

import pytest
import typer

from testbed.cli.verbs import app
from testbed.documentation import reference
from testbed.experiment import Experiment
from testbed.shared.named_sections import all_sections

PARTS = reference.parts()
PAGES = {path: path.read_text(encoding="utf-8") for path in reference.DOCS.rglob("*.md")}


def test_what_is_written_into_pages_is_current() -> None:
    old = [str(path) for path, page in PAGES.items() if reference.written(page, PARTS) != page]
    assert old == [], "run: python -m testbed.documentation.reference"


@pytest.mark.parametrize("name", PARTS)
def test_every_part_stands_in_a_page(name: str) -> None:
    assert sum(f"<!-- reference {name}: begin -->" in page for page in PAGES.values()) == 1


@pytest.mark.parametrize("name", ["keys", "axes", "metrics"])
def test_every_row_has_a_meaning(name: str) -> None:
    rows = [line for line in PARTS[name].splitlines() if line.startswith("|")]
    assert len(rows) > 40
    assert [line for line in rows if line.endswith("|  |")] == []


def test_every_name_and_every_key_stands_in_the_reference() -> None:
    for registry in reference.AXES.values():
        assert all(f"| `{name}` |" in PARTS["axes"] for name in registry)
    for path, section in all_sections(Experiment):
        for name, model in section.models().items():
            assert f"| `{name}` |" in PARTS["axes"]
            assert f"### {path}: `{section.key}: {name}`" in PARTS["keys"]
            for key, field in model.model_fields.items():
                assert f"| `{field.alias or key}` |" in PARTS["keys"] or key == section.key


def test_every_verb_has_help_and_an_example_and_so_has_every_option() -> None:
    group: Any = typer.main.get_command(app)
    commands = {name: verb for name, verb in group.commands.items() if name != "bench"}
    inner = group.commands["bench"].commands.items()
    for name, command in [*commands.items(), *((f"bench {name}", verb) for name, verb in inner)]:
        section = PARTS["verbs"].partition(f"## `./lab {name}`\n")[2].partition("\n##")[0]
        assert command.help in section
        assert "Example: " in section
        assert "`\n" not in section.partition("**Options**")[2].replace("```\n", ""), name
