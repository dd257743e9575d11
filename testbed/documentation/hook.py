"""What MkDocs calls while it builds: fills in the generated parts, and follows links into the tree.

A page has `<!-- generated: NAME -->` where a part of `PARTS` belongs. A link that leads out of
`docs/` to a file of the project works on the project's own pages; here the file is copied into
the site, as text, so that it works there too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from testbed.documentation import axes, gates, keys, run_directory_format, verbs

ROOT = Path(__file__).resolve().parents[2]
PARTS: dict[str, Callable[[], str]] = {
    "verbs": verbs.reference,
    "keys": keys.reference,
    "axes": axes.reference,
    "gates": gates.reference,
    "files": run_directory_format.files,
    "metrics": run_directory_format.metrics,
    **{
        section: partial(run_directory_format.reference, section)
        for section in run_directory_format.sections()
    },
}
_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?\))")
_AS_THEY_ARE = {".svg", ".png", ".html", ".json"}


def on_page_markdown(text: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text with its generated parts, and with links that stay in the site."""
    text = _MARK.sub(lambda mark: _part(mark[1], page), text)
    return _LINK.sub(lambda link: _link(link, page, config, files), text)


def _part(name: str, page: Page) -> str:
    if name not in PARTS:
        raise PluginError(f"{page.file.src_uri}: no generated part {name!r}; see {__name__}")
    return PARTS[name]()


def _link(link: re.Match[str], page: Page, config: MkDocsConfig, files: Files) -> str:
    opening, target, closing = link.groups()
    here = (Path(config.docs_dir) / page.file.src_uri).parent
    path = Path(os.path.normpath(here / target))
    if path.is_relative_to(config.docs_dir) or not path.is_relative_to(ROOT) or not path.exists():
        return link[0]  # MkDocs checks it, and says so when it leads nowhere
    copied = _copied(path, config, files)
    return opening + os.path.relpath(copied, Path(page.file.src_uri).parent) + closing


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
