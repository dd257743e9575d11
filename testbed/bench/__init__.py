"""Benchmarks: `./lab bench transport`, `bench peer` and `bench factorial`.

`tuning` is `./lab tune`. May import run, experiment, lab, training, transport, shared, and the
analysis for figures and intervals. To add a benchmark: a package with a `console.run` like theirs,
and its name in `testbed.cli.benchmarks`. One that trains is a `study`; `simulated` is its engine.
"""
