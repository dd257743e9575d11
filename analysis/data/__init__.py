"""Reads run directories and the papers' numbers, and computes each run's metrics.

`kept_rows` keeps an experiment in the repository: all its numbers without its run directories.

`load` finds runs and reads their documents, `logs` their logs and samples when a frame is asked
for, and `measure` makes of them what reports need. `frames` is what users of `analysis.load` see.

It imports no other room. To add a metric, write a line in `metrics.csv` and its value in
`metrics.py`; a column, a line in `frame_columns.csv`; a published number, an entry in
`published.yaml`.
"""
