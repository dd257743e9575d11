"""The figures of the report; may import what lies below, not `tables`.

A new one stands in `draw_all` of `analysis/report/writing.py` and in `captions.csv` beside it.
"""
