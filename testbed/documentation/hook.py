"""The hook of MkDocs: a link out of `docs/` leads to a copy in the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?\))")
_AS_THEY_ARE = {".svg", ".png", ".html", ".json"}


def on_page_markdown(text: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text with links that stay in the site."""
    docs, here = Path(config.docs_dir), Path(page.file.src_uri).parent

    def within(link: re.Match[str]) -> str:
        opening, target, closing = link.groups()
        path = Path(os.path.normpath(docs / here / target))
        if path.is_relative_to(docs) or not path.is_relative_to(ROOT) or not path.exists():
            return link[0]  # MkDocs checks it, and says so when it leads nowhere
        return opening + os.path.relpath(_copied(path, config, files), here) + closing

    return _LINK.sub(within, text)


def _copied(path: Path, config: MkDocsConfig, files: Files) -> str:
    """The place in the site of a file of the project; a folder becomes a list of its files."""
    place_in_project = path.relative_to(ROOT).as_posix()
    content: dict[str, Any] = {"abs_src_path": str(path)}
    if path.is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
        shown = [name for name in names if not name.startswith((".", "__pycache__"))]
        content = {"content": "\n".join([f"{place_in_project}/", "", *shown, ""])}
    place = (
        f"tree/{place_in_project}"
        if path.suffix in _AS_THEY_ARE
        else f"tree/{place_in_project}.txt"
    )
    if files.get_file_from_path(place) is None:
        files.append(File.generated(config, place, **content))
    return place
