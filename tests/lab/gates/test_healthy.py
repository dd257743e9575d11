"""A healthy lab of each kind of topology stays ok."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import OkOrStalled
from tests.lab.gates.healthy import TOPOLOGIES, verdict

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


# README's first command runs a star, and the tutorial's own experiment a dumbbell with a delay.
_SHORT = ("leaf-spine",)


def _marked(kind: str) -> Any:
    return pytest.param(kind, marks=[] if kind in _SHORT else [pytest.mark.long])


@pytest.mark.parametrize("kind", [_marked(each) for each in TOPOLOGIES])
def test_a_healthy_lab_is_ok_with_the_limits_that_users_get(
    tmp_path: Path, kind: str, held_rate_bps: int, ok_or_stalled: OkOrStalled
):
    ok_or_stalled(verdict(tmp_path, kind, held_rate_bps))
