"""Reads run directories and kept results, and computes each run's metrics; imports no other room.

To add a metric, see `metrics.csv` and `metrics.py`; a column, `frame_columns.csv`.
"""
