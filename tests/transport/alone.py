"""Moves payloads over loopback with the installed package, and checks what was imported for it.

`python -I alone.py`, with the interpreter of the environment that is to be tried.
"""

import json
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from testbed.transport import (
    PRESETS,
    Endpoint,
    EndpointConfig,
    Leg,
    PayloadLayout,
    open_endpoint,
    preset,
)
from testbed.transport.native.fast_path import FAST_PATH, WHY_NONE

PREFIX = f"127.{1 + os.getpid() % 250}.251"
LAYOUT = PayloadLayout([("weights", 100_001)], chunk_bytes=1432)
GRADIENT = np.arange(100_001, dtype=np.float32)


def opened(name: str, protocol: str, address: str, peer: dict[str, str]) -> Endpoint:
    settings: dict[str, Any] = {"tolerance": 0} if protocol == "fixed-low" else {}
    config = EndpointConfig(
        session=7,
        name=name,
        is_server=name == "server",
        bind_address=address,
        peers=peer,
        protocol=preset(protocol, **settings),
        layout=LAYOUT,
        rate_bps=500e6,
        control_port=21000,
        data_port=21100,
    )
    return open_endpoint(config)


def serve(protocol: str) -> bool:
    """Receives one gradient without loss, and sends it back."""
    with opened("server", protocol, f"{PREFIX}.1", {"worker": f"{PREFIX}.2"}) as endpoint:
        buffer = LAYOUT.new_buffer()
        endpoint.receive(Leg.GATHER.transfer(0), 0, {"worker": buffer})
        arrived = np.array_equal(LAYOUT.floats(buffer), GRADIENT)
        endpoint.send(Leg.BROADCAST.transfer(0), {"worker": buffer})
    return arrived


def there_and_back(protocol: str) -> bool:
    with ThreadPoolExecutor() as pool:
        server = pool.submit(serve, protocol)
        with opened("worker", protocol, f"{PREFIX}.2", {"server": f"{PREFIX}.1"}) as endpoint:
            sent, back = LAYOUT.new_buffer(), LAYOUT.new_buffer()
            LAYOUT.floats(sent)[:] = GRADIENT
            endpoint.send(Leg.GATHER.transfer(0), {"server": sent})
            endpoint.receive(Leg.BROADCAST.transfer(0), 0, {"server": back})
        return server.result() and np.array_equal(LAYOUT.floats(back), GRADIENT)


def rooms() -> set[str]:
    ours = {"testbed", "topologies", "controllers", "analysis"}
    modules = (module.split(".") for module in sys.modules)
    return {".".join(parts[:2]) for parts in modules if parts[0] in ours}


if __name__ == "__main__":
    for name in PRESETS:
        preset(name, **({"deadline_s": 1.0} if name == "ltp" else {}))
    moved = {name: there_and_back(name) for name in ("fixed-low", "dblp-stream", "tcp")}
    result = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "moved": moved,
        "compiled": FAST_PATH.compiled,
        "why": WHY_NONE,
        "rooms": sorted(rooms()),
    }
    print(json.dumps(result))
    sys.exit(not all(moved.values()))
