"""Reads run directories and kept results, and computes each run's metrics; imports no other room.

To add a metric, write a line in `metrics.csv` and its value in `metrics.py`; a column, a line in
`frame_columns.csv`.
"""
