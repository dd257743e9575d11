"""The tables of report, README and terminal; may import what lies below, not `figures`.

A new one stands in `_tables` of `analysis/report/writing.py` and in `report.html.j2`.
"""
