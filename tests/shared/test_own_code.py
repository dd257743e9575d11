"""A user's own code: a file that ends the program, and what a file imports from its folder."""

import hashlib
from pathlib import Path

import pytest

from testbed.shared import own_code
from testbed.shared.input_error import InputError


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(3)"])
def test_a_file_that_ends_the_program_is_named(tmp_path, raised):
    path = tmp_path / "mine.py"
    path.write_text(f"x = 1\nraise {raised}\n")
    with pytest.raises(InputError, match=r"mine\.py: line 2: (KeyboardInterrupt|SystemExit)"):
        own_code.load(str(path), axis="model", default="Model", base=None)


def written(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "mine.py")


def test_what_a_file_imports_from_its_folder_counts_with_it(tmp_path):
    place = written(
        tmp_path,
        mine="import json\ndef late():\n    from parts_mine.inner import VALUE\n    return VALUE\n",
        parts_mine__in____init__="",
        parts_mine__in__inner="from . import constants\nfrom .constants import VALUE\n",
        parts_mine__in__constants="import helper_mine\nVALUE = helper_mine.VALUE\n",
        helper_mine="VALUE = 7\n",
        stranger_mine="VALUE = 1\n",
    )
    before = own_code.fingerprint(place)
    seen = {before}
    for name in ("parts_mine/__init__", "parts_mine/inner", "parts_mine/constants", "helper_mine"):
        path = tmp_path / f"{name}.py"
        path.write_text(path.read_text() + "# changed\n")
        seen.add(own_code.fingerprint(place))
    assert len(seen) == 5
    (tmp_path / "stranger_mine.py").write_text("VALUE = 2\n")
    assert own_code.fingerprint(place) in seen
    assert own_code.load(f"{place}:late", axis="x", default="", base=None)() == 7


def test_a_file_that_imports_nothing_beside_it_counts_with_its_own_hash(tmp_path):
    place = written(tmp_path, mine="import yaml, json\ndef x(): pass\n", json="boom")
    assert own_code.fingerprint(place) == hashlib.sha256(Path(place).read_bytes()).hexdigest()
    own_code.load(place, axis="x", default="", base=None)


def test_two_folders_modules_of_one_name_are_not_taken_for_each_other(tmp_path):
    text = "import twin_of_own_code\ndef x(): pass\n"
    first, second = (
        written(tmp_path / name, mine=text, twin_of_own_code="") for name in ("one", "two")
    )
    own_code.load(first, axis="x", default="", base=None)
    with pytest.raises(InputError, match="imports twin_of_own_code, and Python has loaded another"):
        own_code.load(second, axis="x", default="", base=None)


@pytest.mark.parametrize("changed", ["mine.py", "beside_me.py"])
def test_a_process_of_the_run_refuses_a_file_or_an_import_that_has_changed(tmp_path, changed):
    place = written(tmp_path, mine="import beside_me\ndef x(): pass\n", beside_me="A = 1\n")
    planned = {place: own_code.fingerprint(place)}
    try:
        own_code.expect(planned)
        assert str(tmp_path / "beside_me.py") in own_code.files()
        (tmp_path / changed).write_text("def x(): return 2\n")
        text = r"mine\.py: has changed since the run was planned"
        with pytest.raises(InputError, match=text):
            own_code.load(place, axis="x", default="", base=None)
        with pytest.raises(InputError, match=text):
            own_code.expect(planned)
    finally:
        own_code.expect({})
