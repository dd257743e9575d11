"""The tables of report, README and terminal; may import what lies below, not `figures`.

To add one, write a function that returns a `rendering.Table`, and name it in `_tables` of
`analysis/report/writing.py` and in `report.html.j2`.
"""
