"""The figures of the report.

It may import what lies below, not `tables`. To add a figure, write a function that takes frames or
a summary and returns a matplotlib figure or None where there is nothing to draw; name it in
`draw_all` of `analysis/report/writing.py`, and put its words into `captions.csv` beside that.
Colours and markers of the arms are in `style.py`.
"""
