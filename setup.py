"""Compiles the transport's hot path where there is a C compiler. All else is in pyproject.toml."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("testbed/transport/native")
SOURCES = [str(FOLDER / name) for name in ("batches.c", "batches.h", "routine.c", "sealing.c")]
DIGEST = hashlib.sha256(b"".join(Path(source).read_bytes() for source in SOURCES)).hexdigest()

setup(
    ext_modules=[
        Extension(
            "testbed.transport.native.batches",
            [source for source in SOURCES if source.endswith(".c")],
            depends=SOURCES,
            # By it `native/hot_path.py` tells a library of another source.
            define_macros=[("SOURCE", f'"{DIGEST}"')],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            optional=True,  # without a compiler numpy does the same
        )
    ]
)
