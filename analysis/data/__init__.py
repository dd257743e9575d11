"""Reads run directories and the papers' numbers, and computes each run's metrics.

`keeping` writes, and `kept_rows` reads, what is kept of an experiment in the repository: enough for
all its numbers without its run directories.

It imports nothing of the other rooms. To add a metric, write an entry in `metrics.py`. To add a
log or a column of one, add it to the schemas in `records.py` and to `Results` in `load.py`. To add
a published number, write an entry in `published.yaml`.
"""
