"""The tables of the report, of README and of the terminal.

It may import what lies below, not `figures`. `metrics.csv` says which metrics they show, and in
which order. To add a table, write a function that returns a `rendering.Table`, and name it in
`_tables` of `analysis/report/writing.py`; `report.html.j2` says where it is shown.
"""
