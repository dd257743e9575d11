"""A user's own code, in a file outside the project: found, hashed, loaded, and checked.

    ./mine.py              the entry that the file defines
    ./mine.py:Name         the class or function of that name
    package.module:Name    the same, in a module: beside the experiment, or where Python looks

A file counts with its SHA-256, a module with its whole top-level package, both with what they
import from their own folder, as far as that stands in `import` statements. Everything that is wrong
is an InputError: one line that names the file. Needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from testbed.shared.input_error import InputError

FORMS = "./FILE.py, ./FILE.py:NAME, package.module:NAME"
# The same forms for editors, with whatever options follow.
PATTERN = r"^(.*\.py(:.*)?|.*/.*|[A-Za-z_][\w.]*:[A-Za-z_]\w*(:.*)?)$"
_FORM = re.compile(
    r"(?P<place>.+?\.py(?=:|$)|[^:]*)(?::(?P<name>[A-Za-z_]\w*)(?=:|$))?(?::(?P<options>.*))?",
    re.DOTALL,
)
_MODULE = re.compile(r"([^:]*/)?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = ("testbed", "controllers", "topologies", "analysis")
_BRIEF = 60  # characters of a value in a message
# What counts as a number. The abstract class is asked last: that costs several times as much, and
# senders ask at every batch.
NUMBER = (float, int, Real)
_expected: dict[str, str] = {}  # place -> SHA-256, of the run that this process belongs to


def split(text: str) -> tuple[str, str, str | None]:
    """The place (a file or module), the name in it ("" for none), and what follows, if anything."""
    found = _FORM.fullmatch(text)
    assert found is not None  # the form takes any text; `is_own` tells what makes sense
    return found["place"], found["name"] or "", found["options"]


def is_own(text: str) -> bool:
    """Whether a text has one of the forms above; nothing is read to tell."""
    place, name, _ = split(text)
    return place.endswith(".py") or (bool(name) and _MODULE.fullmatch(place) is not None)


def short(text: str) -> str:
    """A name for labels: the name in the file, or the file's own without its ending."""
    place, name, _ = split(text)
    return name or Path(place).stem


def places(texts: Iterable[str]) -> list[str]:
    """The files and modules that texts name; texts of built-in names are passed over."""
    return sorted({split(each)[0] for each in texts if is_own(each)})


def find_file(name: str, folders: Sequence[Path]) -> Path:
    """A file in the first of these folders that has it, or else in the current one."""
    looked = [folder.resolve() for folder in (*folders, Path())]
    for folder in looked:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{name}: no such file; looked in {_in_words(looked)}")


def located(text: str, folders: Sequence[Path] = ()) -> str:
    """The same reference with an absolute path, which any process can load."""
    place, name, _ = split(text)
    suffix = f":{name}" if name else ""
    if place.endswith(".py"):
        return f"{find_file(place, folders).resolve()}{suffix}"
    looked = [folder.resolve() for folder in (*folders, Path())]
    parent, _, module = place.rpartition("/")
    if place.startswith("/"):
        looked = [Path(parent or "/")]
    elif parent:
        looked = [(folder / parent).resolve() for folder in looked]
    roots = _roots(module, looked if parent else [*looked, *sys.path])
    if not roots:
        raise InputError(f"{text}: no module {module.partition('.')[0]!r} in {_in_words(looked)}")
    folder = roots[0].parent
    return f"{folder}/{module}{suffix}" if folder in looked else text


def fingerprint(place: str) -> str:
    """The SHA-256 of a file or of a module's package, without executing it; "" if installed."""
    is_file = place.endswith(".py") or Path(place).is_file()  # a program may have any ending
    files = [Path(place)] if is_file else _files(place)
    if not files or any(not is_file and _INSTALLED.intersection(file.parts) for file in files):
        return ""
    beside = sorted(_beside(place))
    if is_file and not beside:
        return hashlib.sha256(_source(Path(place))).hexdigest()
    digest = hashlib.sha256()
    for file in [*files, *beside]:
        content = _source(file)
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def expect(hashes: Mapping[str, str]) -> None:
    """From now on this process loads these places with what `fingerprint` gave at the plan."""
    _expected.clear()
    _expected.update(hashes)
    for place in hashes:
        _check_content(place)


def _check_content(place: str) -> None:
    expected = _expected.get(place)
    if expected is not None and (sha256 := fingerprint(place)) != expected:
        raise InputError(
            f"{place}: has changed since the run was planned: SHA-256 {sha256}, expected {expected}"
        )


def load(text: str, *, axis: str, default: str, base: type | None) -> Any:
    """The class or function that a located reference names: its name, the default, or what fits."""
    place, name, _ = split(text)
    with explained(place):
        _check_content(place)
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    expected = f"expected {f'a class that derives from {base.__name__}' if base else 'a function'}"
    contents = vars(module)
    if not name and contents.get(default) not in (None, base):
        name = default
    if not name:
        fitting = [
            key
            for key, content in contents.items()
            if getattr(content, "__module__", "") == module.__name__
            and not key.startswith("_")
            and _fits(content, base)
        ]
        if len(fitting) > 1:
            raise InputError(
                f"{place}: defines {', '.join(fitting)}; say which {axis} is meant, "
                f"for example {Path(place).name}:{fitting[0]}"
            )
        if not fitting:
            raise InputError(f"{place}: defines no {axis}; {expected}, by default {default!r}")
        (name,) = fitting
    if name not in contents:
        raise InputError(f"{place}: defines no {name!r}; {expected}")
    entry = contents[name]
    if not _fits(entry, base):
        kind = "a class of another kind" if isinstance(entry, type) else type(entry).__name__
        raise InputError(f"{place}: {name} is {kind}; {expected}")
    if lacking := sorted(getattr(entry, "__abstractmethods__", ())):
        raise InputError(f"{place}: {name} lacks {', '.join(lacking)}, which every {axis} has")
    return entry


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Turns whatever a user's code raises into one line, the end of the program included."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:  # SystemExit too: the code is not ours
        last = (traceback.extract_tb(error.__traceback__)[-1].line or "").strip()
        if isinstance(error, KeyboardInterrupt) and not last.startswith("raise"):
            raise
        raise InputError(in_one_line(place, error)) from error


def unfit(owner: object, name: str, returned: object, expected: str) -> InputError:
    """The error for what a method, property or attribute gave that no run can use."""
    member = inspect.getattr_static(type(owner), name, None)
    code = getattr(getattr(member, "fget", member), "__code__", None)
    where = f"{code.co_filename}: line {code.co_firstlineno}: " if code is not None else ""
    verb = "is" if code is None or isinstance(member, property) else "returned"
    shape, kind = getattr(returned, "shape", None), type(returned).__name__
    text = " ".join(repr(returned).split())
    if shape is not None and shape != ():
        text = f"{kind} of shape {tuple(shape)} and type {getattr(returned, 'dtype', '?')}"
    elif len(text) > _BRIEF:
        text = f"{kind} {text[:_BRIEF]}..."
    return InputError(f"{where}{type(owner).__name__}.{name} {verb} {text}; expected {expected}")


def raised_in(error: BaseException, places: Iterable[str] | None = None) -> str | None:
    """The last line of own code, by default all, that an exception or its causes passed through."""
    own = files(places)
    cause: BaseException | None = error
    while cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            if frame.filename in own:
                return f"{frame.filename}: line {frame.lineno}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def files(places: Iterable[str] | None = None) -> set[str]:
    """The source files of places, by default of all own code that this process expects."""
    return {
        str(file)
        for place in (_expected if places is None else places)
        for file in (*([place] if place.endswith(".py") else _files(place)), *_beside(place))
    }


def _beside(place: str) -> dict[Path, str]:
    """The files that a place imports from its folder, and these in turn: file -> module."""
    if place.endswith(".py"):
        folder, begin = Path(place).parent, [Path(place)]
    elif "/" not in place or Path(place).is_file():
        return {}
    else:
        folder, begin = Path(place.rpartition("/")[0]), _files(place)
    finder = ModuleFinder([str(folder)], excludes=[*_OURS, *sys.stdlib_module_names])
    for file in begin:
        name = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        with suppress(ImportError, OSError, SyntaxError, ValueError):  # named when it is loaded
            finder.import_hook(name)
    named = {name: vars(module)["__file__"] for name, module in finder.modules.items()}
    return {Path(file): name for name, file in named.items() if file and Path(file) not in begin}


def _in_words(folders: Iterable[Path]) -> str:
    return " or ".join(dict.fromkeys(map(str, folders)))


def _find_also_in(folder: str) -> None:
    """From now on modules are found in a folder, too, and hide none that are found elsewhere."""
    if folder not in sys.path:
        sys.path.append(folder)


def _fits(entry: Any, base: type | None) -> bool:
    if base is None:
        return callable(entry)
    return isinstance(entry, type) and issubclass(entry, base) and entry is not base


def _from_file(path: Path) -> ModuleType:
    """The file as a module, executed once per content."""
    source = _source(path)
    name = f"own_code_{hashlib.sha256(str(path).encode() + source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    made = ModuleType(name)
    made.__file__ = str(path)
    sys.modules[name] = made  # pydantic and dataclasses look up annotations here
    _find_also_in(str(path.parent))
    try:
        # Not through Python's import machinery: its cache of compiled files goes by time.
        exec(compile(source, str(path), "exec"), vars(made))  # noqa: S102 (asked for)
    except BaseException:
        del sys.modules[name]
        raise
    for file, module in _beside(str(path)).items():
        loaded = getattr(sys.modules.get(module), "__file__", None)
        if loaded is not None and Path(loaded).resolve() != file.resolve():
            raise InputError(
                f"{path}: imports {module}, and Python has loaded another one: {loaded}; "
                "give one of the two files another name"
            )
    return made


def _from_module(place: str) -> ModuleType:
    folder, _, name = place.rpartition("/")
    if not folder:
        return importlib.import_module(name)
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        _find_also_in(folder)  # for what the module imports later
    if module.__file__ is None or not Path(module.__file__).is_relative_to(folder):
        raise InputError(f"{place}: Python has loaded another module {name!r}: {module.__file__}")
    return module


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _roots(module: str, looked: Sequence[Path | str]) -> list[Path]:
    """The folders of a module's top-level package, or its file; empty where there is none."""
    spec = PathFinder.find_spec(module.partition(".")[0], [str(folder) for folder in looked])
    folders = spec.submodule_search_locations or [spec.origin or "."] if spec else []
    return [Path(folder) for folder in folders]


def _files(place: str) -> list[Path]:
    """The sources of a module's top-level package."""
    folder, _, module = place.rpartition("/")
    roots = _roots(module, [folder, *sys.path] if folder else sys.path)
    sources = [path for root in roots for path in (root, *root.rglob("*.py"))]
    return sorted(path for path in sources if path.is_file())


def in_one_line(place: str, error: BaseException) -> str:
    """The last line of the user's code that was executed, and what was wrong there."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or place}: line {error.lineno}: {error.msg}"
    where = raised_in(error, [place]) or place
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{where}: {kind}{' '.join(str(error).split())}".rstrip(": ")
