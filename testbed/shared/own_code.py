"""A user's own code, in a file outside the project: found, hashed, loaded, and checked.

`./mine.py` is the entry that the file defines, or has imported under the default name,
`./mine.py:Name` that of this name. It counts with the SHA-256 of itself and of what it imports from
its folder. All that is wrong is an InputError of one line that names the file.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from modulefinder import ModuleFinder
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from testbed.shared.input_error import InputError

FORMS = "./FILE.py, ./FILE.py:NAME"
# The same forms for editors, with whatever options follow.
PATTERN = r"^.*\.py(:.*)?$"
_FORM = re.compile(
    r"(?P<place>.+?\.py(?=:|$)|[^:]*)(?::(?P<name>[A-Za-z_]\w*)(?=:|$))?(?::(?P<options>.*))?",
    re.DOTALL,
)
_OURS = ("testbed", "controllers", "topologies", "analysis")
_BRIEF = 60  # characters of a value in a message
# What counts as a number. The abstract class is asked last: that costs several times as much, and
# senders ask at every batch.
NUMBER = (float, int, Real)
_expected: dict[str, str] = {}  # place -> SHA-256, of the run that this process belongs to


def split(text: str) -> tuple[str, str, str | None]:
    """Divide a reference: the file, the name in it ("" for none), and options, if any."""
    parts = _FORM.fullmatch(text)
    assert parts is not None  # the form takes any text; `is_own` says what makes sense
    return parts["place"], parts["name"] or "", parts["options"]


def is_own(text: str) -> bool:
    return split(text)[0].endswith(".py")


def short(text: str) -> str:
    """Return a name for labels: the name in the file, or the file's own without its ending."""
    place, name, _ = split(text)
    return name or Path(place).stem


def places(texts: Iterable[str]) -> list[str]:
    """Return the files that texts name; texts of built-in names are passed over."""
    return sorted({split(text)[0] for text in texts if is_own(text)})


def find_file(name: str, folders: Sequence[Path]) -> Path:
    """Find a file in the first of these folders that has it, or else in the current one."""
    searched = [folder.resolve() for folder in (*folders, Path())]
    for folder in searched:
        if (folder / name).is_file():
            return folder / name
    places = " or ".join(dict.fromkeys(map(str, searched)))
    raise InputError(f"{name}: no such file; looked in {places}")


def located(text: str, folders: Sequence[Path] = ()) -> str:
    """Return the same reference with an absolute path, which any process can load."""
    place, name, _ = split(text)
    path = find_file(place, folders).resolve()
    return f"{path}:{name}" if name else str(path)


def fingerprint(place: str) -> str:
    """Hash a file, and what it imports from its folder, by SHA-256 without executing it."""
    file, beside = Path(place), sorted(_beside(place))
    if not beside:
        return hashlib.sha256(_source(file)).hexdigest()
    digest = hashlib.sha256()
    for path in (file, *beside):
        content = _source(path)
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def expect(hashes: Mapping[str, str]) -> None:
    """Let this process load these places only with the hashes of the plan."""
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
    """Load the class or function of a located reference: its name, the default, or what fits."""
    place, name, _ = split(text)
    with explained(place):
        _check_content(place)
        module = _from_file(Path(place))
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
    """Turn whatever a user's code raises into one line, the end of the program included."""
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
    """Make the error for a value of a method or attribute that no run can use."""
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
    """Find the last line of own code, by default all, that an error or its causes passed."""
    own = files(places)
    cause: BaseException | None = error
    while cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            if frame.filename in own:
                return f"{frame.filename}: line {frame.lineno}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def files(places: Iterable[str] | None = None) -> set[str]:
    """Return the source files of places, by default of all own code of this run."""
    return {
        str(file)
        for place in (_expected if places is None else places)
        for file in (place, *_beside(place))
    }


def _beside(place: str) -> dict[Path, str]:
    """Find the files that a place imports from its folder, and these in turn: file -> module."""
    if not place.endswith(".py"):  # a program may have any ending
        return {}
    file = Path(place)
    finder = ModuleFinder([str(file.parent)], excludes=[*_OURS, *sys.stdlib_module_names])
    with suppress(ImportError, OSError, SyntaxError, ValueError):  # named when it is loaded
        finder.import_hook(file.stem)
    named = {name: vars(module)["__file__"] for name, module in finder.modules.items()}
    return {Path(path): name for name, path in named.items() if path and Path(path) != file}


def _fits(entry: Any, base: type | None) -> bool:
    if base is None:
        return callable(entry)
    return isinstance(entry, type) and issubclass(entry, base) and entry is not base


def _from_file(path: Path) -> ModuleType:
    """Load a file as a module, executed once per content."""
    source = _source(path)
    name = f"own_code_{hashlib.sha256(str(path).encode() + source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    made = ModuleType(name)
    made.__file__ = str(path)
    sys.modules[name] = made  # pydantic and dataclasses look up annotations here
    if str(path.parent) not in sys.path:  # last: it hides no module that is found elsewhere
        sys.path.append(str(path.parent))
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


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def in_one_line(place: str, error: BaseException) -> str:
    """Say which line of the user's code was executed last, and what was wrong there."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or place}: line {error.lineno}: {error.msg}"
    where = raised_in(error, [place]) or place
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{where}: {kind}{' '.join(str(error).split())}".rstrip(": ")
