"""Other implementations, driven over the benchmark's links through an adapter.

May import `testbed.bench.conductor`, `testbed.lab.kernel` and `testbed.shared`. To add one: a file
of the user's own (`--adapter ./mine.py`), or a module here and a line in `adapter`.
"""
