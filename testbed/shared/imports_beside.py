"""What a user's file imports from its own folder: found in the text, so nothing is executed.

`import` statements count wherever they stand, also inside functions. What is imported by a name
that is known at run time alone (`importlib.import_module(name)`), and data files, cannot be found.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_added: set[str] = set()  # folders that users' files have brought to the search path


def find_also_in(folder: str) -> None:
    """From now on modules are found in a folder, too, and hide none that are found elsewhere."""
    if folder not in sys.path:
        sys.path.append(folder)
        _added.add(folder)


def files(begin: Iterable[Path], folder: Path) -> dict[Path, str]:
    """The files below a folder that some files import, and that those import, and so on.

    Args:
        begin: where to look first.
        folder: of the modules; what Python finds elsewhere comes first and does not count.

    Returns:
        File -> the name of its module; none of `begin`.
    """
    seen = set(begin)
    found: dict[Path, str] = {}
    left = [(each, _module(each, folder)) for each in seen]
    while left:
        path, name = left.pop()
        for wanted in _imported(path, name):
            for imported, module in _files_of(wanted, folder):
                if imported not in seen:
                    seen.add(imported)
                    found[imported] = module
                    left.append((imported, module))
    return found


def _module(path: Path, folder: Path) -> str:
    """A file's name as a module of the folder."""
    parts = path.relative_to(folder).with_suffix("").parts if path.is_relative_to(folder) else ()
    return ".".join(parts[:-1] if parts[-1:] == ("__init__",) else parts)


def _imported(path: Path, name: str) -> Iterator[str]:
    """The names that a file imports, those in its own package in full; none if unreadable."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            place = [*above, *filter(None, [node.module])]
            yield from (".".join([*place, each.name]) for each in node.names)


def _files_of(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that importing a dotted name executes: of each package on the way, and its own."""
    parts = name.split(".")
    if _is_elsewhere(parts[0], folder):
        return
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                yield path, ".".join(parts[:count])
                break


def _is_elsewhere(top: str, folder: Path) -> bool:
    """Whether Python finds a module of this name in another place, which then comes first."""
    if not (folder / top).is_dir() and not (folder / f"{top}.py").is_file():
        return True
    if top in sys.stdlib_module_names:
        return True
    others = [each for each in sys.path if each not in _added and Path(each).resolve() != folder]
    for finder in sys.meta_path:
        is_of_paths = finder is importlib.machinery.PathFinder
        found = finder.find_spec(top, others if is_of_paths else None)
        # A folder that is no package has no origin, and a file of its name comes first.
        if found and found.origin and not Path(found.origin).is_relative_to(folder):
            return True
    return False
