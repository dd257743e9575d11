"""The tables of the report, of README and of the terminal.

It may import `data`, `statistics`, `summary` and `words`, not `figures`.

To show a metric in the main table, add its name to `ROWS` in `main_table.py` (arms are its columns,
metrics its rows). Is the metric new? Write its entry in `analysis/data/metrics.py` first; nothing
else is needed. To add a table, write a function that returns a `rendering.Table`, and name it in
`_tables` of `analysis/report/writing.py`; the template `report.html.j2` says where it is shown.
"""
