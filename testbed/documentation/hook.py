"""What MkDocs calls while it builds: a link out of `docs/` leads to a copy in the site."""

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
    """Where in the site the file of the project lies; a folder becomes the list of its files."""
    name = path.relative_to(ROOT).as_posix()
    content: dict[str, Any] = {"abs_src_path": str(path)}
    if path.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in path.iterdir())
        shown = [each for each in names if not each.startswith((".", "__pycache__"))]
        content = {"content": "\n".join([f"{name}/", "", *shown, ""])}
    place = f"tree/{name}" if path.suffix in _AS_THEY_ARE else f"tree/{name}.txt"
    if files.get_file_from_path(place) is None:
        files.append(File.generated(config, place, **content))
    return place
