"""The figures of the report; imports what lies below, not `tables`.

To add one, name it in `draw_all` of `analysis/report/writing.py` and in `captions.csv` beside it.
"""
