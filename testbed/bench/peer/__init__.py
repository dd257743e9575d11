"""Other implementations, driven over the benchmark's links through an adapter.

`adapter` says what an adapter is and names them, `dblp_authors` is one, and `player` is the process
at each end of a transfer: the only one that loads an adapter and what it drives. It may import
`testbed.bench.conductor`, `testbed.lab.kernel` and `testbed.shared`; another implementation only in
the process at an end. To add one: a file of the user's own (`--adapter ./mine.py`), or a module
here and a line in `adapter`.
"""
