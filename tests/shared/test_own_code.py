"""Own code that ends the program when it is loaded is named like any other that fails."""

from __future__ import annotations

import pytest

from testbed.shared import own_code
from testbed.shared.input_error import InputError


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(3)"])
def test_a_file_that_ends_the_program_is_named(tmp_path, raised):
    path = tmp_path / "mine.py"
    path.write_text(f"x = 1\nraise {raised}\n")
    with pytest.raises(InputError, match=r"mine\.py: line 2: (KeyboardInterrupt|SystemExit)"):
        own_code.load(str(path), axis="model", default="Model", base=None)
