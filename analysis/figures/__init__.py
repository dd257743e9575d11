"""The figures of the report; may import what lies below, not `tables`.

To add one, write a function that returns a matplotlib figure, or None without data; name it in
`draw_all` of `analysis/report/writing.py`, and put its words into `captions.csv` beside that.
"""
