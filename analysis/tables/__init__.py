"""The tables of report, README and terminal; imports what lies below, not `figures`.

To add one, name it in `_tables` of `analysis/report/writing.py` and in `report.html.j2`.
"""
