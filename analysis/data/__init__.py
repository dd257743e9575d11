"""Reads run directories and kept results, and computes each run's metrics; imports no other room.

A new metric stands in `metrics.csv` and `metrics.py`, a new column in `frame_columns.csv`.
"""
