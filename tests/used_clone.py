"""A clone as its user has it after a while, for tests to run in: nothing of it may matter to them.

It lies at a path with spaces, and holds what this clone does, by links. But `runs/` is its own: a
finished, an interrupted and a half-written run of `quick`. The user's settings are another's.
"""

from pathlib import Path

from tests.analysis.build import ResultsBuilder

_CLONE = Path(__file__).parents[1]
_RUNS = "runs"
_SETTINGS = {
    ".gitconfig": "[color]\n\tui = always\n[commit]\n\tgpgsign = true\n[core]\n\tautocrlf = true\n"
    "\texcludesFile = ~/.ignored\n[status]\n\tshowUntrackedFiles = no\n",
    ".ignored": "*\n",
    ".profile": "echo noise; cd /\n",
    ".bashrc": "echo noise; cd /\n",
    ".config/matplotlib/matplotlibrc": "axes.facecolor: red\nfont.size: 30\nsavefig.dpi: 17\n",
    ".config/pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:1/\nuser = true\n",
    ".local/lib/python3.11/site-packages/yaml.py": "raise SystemExit('the yaml of a user')\n",
    ".local/lib/python3.13/site-packages/yaml.py": "raise SystemExit('the yaml of a user')\n",
}


def make_home(folder: Path) -> Path:
    """The home of somebody who has settings of their own for everything."""
    for name, text in _SETTINGS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def make(folder: Path) -> Path:
    """The clone below a folder."""
    clone = folder / "a used clone"
    clone.mkdir()
    for path in _CLONE.iterdir():
        if path.name != _RUNS:
            (clone / path.name).symlink_to(path)
    build = ResultsBuilder(clone / _RUNS)
    build.run(arm="dblp", seed=1)
    build.run(arm="fixed-low", seed=1, verdict="interrupted", reason="Ctrl-C")
    build.run(arm="tcp-cubic", seed=1, suffix=".partial")
    half = build.folder / "tcp-cubic-s1.partial"
    (half / "status.json").unlink()
    (half / "config.json").write_text((half / "config.json").read_text()[:40])
    (build.folder / ".report-0a1b2c3d").mkdir()
    return clone


def state(clone: Path) -> dict[str, tuple[int, int]]:
    """It returns the results' paths with size and time: a test that changes them wrote there."""
    files = {}
    for path in [clone / _RUNS, *(clone / _RUNS).rglob("*")]:
        status = path.lstat()
        files[str(path)] = (status.st_size, status.st_mtime_ns)
    return files
