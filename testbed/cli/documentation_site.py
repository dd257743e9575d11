"""Builds the documentation with MkDocs, and opens it where there is a desktop."""

import os
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

from testbed.shared.yaml_input import InputError

_ROOT = Path(__file__).resolve().parents[2]
FOLDER = _ROOT / "site"


def build(folder: Path) -> Path:
    """Build the site into a folder and return the page to begin with.

    Raises:
        InputError: the folder cannot be written or holds something else; or MkDocs is missing, or
            refused a page: then its messages stand before ours.
    """
    _require_usable(folder)
    print("building the documentation with MkDocs: about half a minute", flush=True)
    # Not --quiet: MkDocs then does not even count its warnings, and takes every broken link.
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    argv += ["--config-file", str(_ROOT / "mkdocs.yml"), "--site-dir", str(folder.resolve())]
    # The theme's makers announce another product at each build; it is no warning of ours.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(
        argv, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        told = [each for each in done.stderr.splitlines() if not each.startswith("INFO")]
        print("\n".join(told), file=sys.stderr)
        raise InputError("the documentation could not be built; the messages above say why")
    return folder / "index.html"


def _require_usable(folder: Path) -> None:
    """Refuse a folder that cannot be written, or has other files: MkDocs empties it first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            pass
        is_ours = (
            folder == FOLDER or (folder / "sitemap.xml").is_file() or not any(folder.iterdir())
        )
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    if not is_ours:
        raise InputError(f"{folder}: holds other files; valid: a new or an empty folder")


def open_page(page: Path) -> bool:
    """Show a page in the desktop's browser; False where there is none."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    return webbrowser.open(page.resolve().as_uri())
