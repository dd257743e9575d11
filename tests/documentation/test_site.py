"""The site builds without a warning, and a reader without a network misses nothing of it."""

import re
from pathlib import Path

import pytest

from testbed.cli import maintenance
from testbed.shared.yaml_input import InputError

# What a browser loads by itself: an address in one of these places, but not that of a plain link.
_LOADED = (
    re.compile(
        r"<(?!a\b)[a-z-]+\b[^>]*?\s(?:src|srcset|data|poster|action)=[\"']?(?:https?:)?//[^>]*"
    ),
    re.compile(r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*"),
    re.compile(r"url\([\"']?(?:https?:)?//[^)]*\)"),
    re.compile(r"@import\s+[\"'](?:https?:)?//[^\"']*"),
    re.compile(r'class="mermaid"|data-md-component="source"'),  # the theme fetches for these
)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    maintenance.build_site(folder)
    return folder


def _texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for suffix in ("html", "css", "svg")
        for path in folder.rglob(f"*.{suffix}")
    }


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    texts = _texts(built)
    assert texts
    for name, text in texts.items():
        loading = [match[0][:120] for pattern in _LOADED for match in pattern.finditer(text)]
        assert loading == [], name


def test_the_search_has_its_index_as_a_script_and_a_worker_that_files_can_start(
    built: Path,
) -> None:
    index = (built / "search" / "search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = ")
    assert "reference/verbs.html" in index
    assert "assets/iframe-worker.js" in (built / "reference" / "verbs.html").read_text()


def test_a_link_that_leads_nowhere_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[There](there.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: Broken\n")
    monkeypatch.setattr(maintenance, "_ROOT", tmp_path)
    with pytest.raises(InputError, match="could not be built"):
        maintenance.build_site(tmp_path / "site")
    assert "there.md" in capfd.readouterr().err


def test_a_link_to_a_file_of_the_project_leads_to_a_copy_in_the_site(built: Path) -> None:
    pages = [text for name, text in _texts(built).items() if name.endswith(".html")]
    targets = {
        target for text in pages for target in re.findall(r'href="[./]*(tree/[^"#]+)"', text)
    }
    assert targets
    for target in targets:
        assert (built / target).is_file(), target
