"""Benchmarks, `./lab bench`: the transport beside others, and two rules over simulated trainings.

May import run, experiment, lab, training, transport, shared, and the analysis for figures, tables
and intervals. To add a benchmark: a `run` here, and its verb in `testbed.cli.benchmarks`.
"""
