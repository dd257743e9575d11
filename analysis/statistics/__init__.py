"""Plain functions of numbers: intervals and tests over seeds, pairs of runs, theoretical bounds.

It may import `data`. To add a statistic, write a function of numbers in `intervals.py`, with a test
against a value known by hand.
"""
