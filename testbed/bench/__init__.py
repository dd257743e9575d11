"""Benchmarks: `./lab bench transport`, which `peer` belongs to, and `./lab bench tolerance`.

May import lab, training, transport, shared, and the analysis for figures and intervals. To add a
benchmark: a package with a `console.run` like theirs, and its name in the verb `bench`.
"""
