"""Benchmarks: `./lab bench transport`, with `peer`, and `bench tolerance`, with `factorial`.

`tuning` is `./lab tune`. May import run, experiment, lab, training, transport, shared, and the
analysis for figures and intervals. To add a benchmark: a package with a `console.run` like theirs,
and its name in `testbed.cli.benchmarks`. One that trains without a network is a `study`.
"""
