"""Gates are shown to trip, each on a lab that is wrong in exactly that way."""

from pathlib import Path

import pytest

from tests.lab.gates.harness import WrongLab


@pytest.fixture
def wrong_lab(tmp_path: Path, held_rate_bps: int, unchanged_host: None) -> WrongLab:
    """Runs a small experiment that the test breaks; nothing is left of it afterwards."""
    return WrongLab(tmp_path, held_rate_bps)
