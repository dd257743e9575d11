"""A small experiment, and files of it with changes."""

from pathlib import Path
from typing import Any

import yaml

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 10,
    "seeds": [1, 2],
    "topology": {"name": "star", "workers": 2},
    "arms": {"dblp": {"protocol": "dblp"}, "tcp-reno": {"protocol": "tcp-reno"}},
    "impairments": [{"kind": "loss", "host": "server", "rounds": [3], "q": 0.9}],
}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}, sort_keys=False))
    return str(path)
