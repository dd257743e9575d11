"""Keeps the package transformers offline. Import this module before it.

Our models are built from configurations with random weights. These settings ensure that no part of
the package contacts a server.
"""

import os

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # no threads before a fork
