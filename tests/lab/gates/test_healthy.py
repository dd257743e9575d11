"""A healthy lab of each kind of topology stays ok."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.gates.healthy import TOPOLOGIES, reason_not_ok

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_healthy_lab_is_ok_with_the_limits_that_users_get(
    tmp_path: Path, kind: str, held_rate_bps: int
):
    assert reason_not_ok(tmp_path, kind, held_rate_bps) == ""
