"""Compiles the fast paths where there is a C compiler. All else is in pyproject.toml."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

NATIVE = "testbed/transport/native"


def library(name: str, *flags: str) -> Extension:
    """Describe a library, which `transport/compiled.py` knows by the digest of its source."""
    source = f"{NATIVE}/{name}.c"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return Extension(
        f"{NATIVE}/{name}".replace("/", "."),
        [source],
        define_macros=[("SOURCE", f'"{digest}"')],
        extra_compile_args=["-fvisibility=hidden", *flags],
        optional=True,  # without a compiler numpy does the same
    )


# Two operations on floats made one would round otherwise than numpy.
setup(ext_modules=[library("batches", "-O2"), library("codec", "-O3", "-ffp-contract=off")])
