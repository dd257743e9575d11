"""Large imports go without the garbage collector, which works again afterwards."""

import gc

import pytest

from testbed.shared import python_module


def test_the_collector_rests_while_modules_are_imported_and_never_looks_at_them() -> None:
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), python_module.large_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
