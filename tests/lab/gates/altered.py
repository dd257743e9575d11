"""Changes functions of the lab before it runs, in every process that a command starts.

A change is source text that is executed at the end of its module, as if it stood there.
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
# What is executed as a program must be changed before it begins.
_MAIN = '\nif __name__ == "__main__":'
_HOOK = '''
import importlib.machinery
import sys

CHANGES = {changes!r}
MAIN = {main!r}


class Changed(importlib.machinery.SourceFileLoader):
    """Compiles a module together with its change; nothing is kept in a cache."""

    def get_code(self, fullname):
        source, main, rest = self.get_source(fullname).partition(MAIN)
        text = "\\n".join((source, CHANGES[fullname], main + rest))
        return compile(text, self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in CHANGES:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        found.loader = Changed(name, found.origin)
        return found


sys.meta_path.insert(0, Finder)
'''


def environment(folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command whose processes see the changes."""
    for name in changes:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name)
    folder.mkdir(parents=True)
    hook = _HOOK.format(changes=dict(changes), main=_MAIN)
    (folder / "sitecustomize.py").write_text(hook)
    places = [str(folder), str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
