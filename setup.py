"""Compiles the transport's fast path where there is a C compiler. All else is in pyproject.toml."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

SOURCE = "testbed/transport/native/batches.c"
DIGEST = hashlib.sha256(Path(SOURCE).read_bytes()).hexdigest()

setup(
    ext_modules=[
        Extension(
            "testbed.transport.native.batches",
            [SOURCE],
            # By it `native/fast_path.py` tells a library of another source.
            define_macros=[("SOURCE", f'"{DIGEST}"')],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            optional=True,  # without a compiler numpy does the same
        )
    ]
)
