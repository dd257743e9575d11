"""Benchmarks, `./lab bench`: the transport beside others, and two rules over simulated trainings.

May import run, experiment, lab, training, transport, shared, and analysis. `cases` says what
is measured, `network` builds the links, `measurement` runs the cases in a sandbox. To add a case: a
generator in `cases`; a benchmark: a `run` here, and its verb in `testbed.cli.benchmarks`.
"""
