"""What every host of a run derives from its configuration."""

from pathlib import Path
from typing import Any

import pytest

from testbed.training.filling import Previous, Rescale
from testbed.training.setting import Setting
from testbed.transport import Leg, preset

HOSTS = {"server": "10.0.0.1", "worker-1": "10.0.0.2", "worker-2": "10.0.0.3"}


def setting(seed: int = 1) -> Setting:
    config: dict[str, Any] = {
        "rounds": 3,
        "seed": seed,
        "protocol": preset("dblp", order="shuffled").describe(),
        "filling": {"gather": "rescale", "broadcast": "previous"},
        "training": {"model": "small-cnn"},
        "transport": {"chunk_bytes": 1456, "pace": 0.9, "peer_timeout_s": 30.0},
    }
    return Setting(
        config=config,
        directory=Path("/nowhere"),
        addresses=HOSTS,
        link_rates_bps=dict.fromkeys(HOSTS, 10**8),
        controller_socket=Path("/nowhere"),
        coordination_socket=Path("/nowhere"),
        session=1,
    )


def test_each_leg_has_its_own_filling():
    assert setting().filling(Leg.GATHER) == Rescale()
    assert setting().filling(Leg.BROADCAST) == Previous()


@pytest.mark.parametrize("host", HOSTS)
def test_random_choices_follow_from_the_run_s_seed(host):
    assert setting(seed=5).endpoint(host).seed == setting(seed=5).endpoint(host).seed
    assert setting(seed=5).endpoint(host).seed != setting(seed=6).endpoint(host).seed


def test_hosts_choose_apart_from_each_other():
    assert len({setting().endpoint(host).seed for host in HOSTS}) == len(HOSTS)
