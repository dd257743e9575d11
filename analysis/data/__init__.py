"""Reads run directories and the papers' numbers, and computes each run's metrics.

`keeping` writes, and `kept_rows` reads, what is kept of an experiment in the repository: enough for
all its numbers without its run directories.

`load` reads a run's documents, `logs` its logs when a frame is asked for, `measure` makes of them
what reports need, and `kept_measures` keeps that. `frames` is what users of `analysis.load` see.

It imports nothing of the other rooms. To add a metric, write an entry in `metrics.py`; a column, a
line in `frame_columns.csv` (of a log also an entry in `logs.py`); a published number, an entry in
`published.yaml`.
"""
