"""Reads run directories and kept results, and computes each run's metrics; imports no other room.

To add a metric, add a line to `metrics.csv`; a column of a frame, to `frame_columns.csv`.
"""
