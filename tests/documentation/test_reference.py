"""The generated parts of the reference name everything, and say what it means."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testbed.documentation import axes, hook, keys, verbs, written
from testbed.experiment import Experiment
from testbed.shared.named_sections import all_sections
from testbed.training.models import MODELS
from testbed.training.optimisers import OPTIMISERS
from tests.documentation.shown import ROOT


@pytest.mark.parametrize("title", axes.AXES)
def test_every_option_of_an_axis_has_a_meaning(title: str) -> None:
    page = axes.reference()
    registry, *_ = axes.AXES[title]
    for name in registry:
        assert f"| `{name}` |" in page
        for option, _, meaning in axes.option_rows(registry.entry(name)):
            assert meaning, f"{name} {option}"


def test_every_name_stands_on_the_page_of_names() -> None:
    page = axes.reference()
    for _, section in all_sections(Experiment):
        for name in section.registry:
            assert f"| `{name}` |" in page
            assert section.meaning(name)
    for name in (*MODELS, *OPTIMISERS):
        assert f"| `{name}` |" in page


def test_every_key_stands_on_the_page_of_keys_with_its_meaning() -> None:
    page = keys.reference()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [line for line in rows if line.endswith("|  |")] == []
    for path, section in all_sections(Experiment):
        for name, model in section.models().items():
            assert f"### {keys.title(path, section, name)}" in page
            for key, field in model.model_fields.items():
                assert f"| `{field.alias or key}` |" in page or key == section.key


def test_every_verb_has_help_and_an_example_and_so_has_every_option() -> None:
    page = verbs.reference()
    for name, command in verbs.commands().items():
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert command.help in section
        assert "Example: `" in section
        assert "|  |" not in section


def test_every_generated_part_stands_in_a_page_and_every_mark_has_its_part() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert set(hook._MARK.findall(pages)) == set(hook.PARTS)


def test_what_is_written_into_a_page_is_current() -> None:
    for name, (path, _) in written.PARTS.items():
        said = "run: python -m testbed.documentation.written"
        assert path.read_text(encoding="utf-8") == written.page(name), said


def test_who_reads_a_page_on_disk_learns_before_its_first_gap_how_to_fill_it() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if hook._MARK.search(path.read_text())]
    assert len(pages) > 5
    for path in pages:
        before = path.read_text().partition("<!-- generated: ")[0]
        assert "`./lab docs` builds" in before, path
        # Of the gates, the verb itself prints what the site shows.
        instead = "`explain` prints" if path.name == "verdicts.md" else "Without the site"
        assert instead in before, path


def test_the_reference_can_be_made_where_torch_is_left_out() -> None:
    script = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Without())
from testbed.documentation import hook
for make in hook.PARTS.values():
    assert make()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
