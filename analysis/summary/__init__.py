"""Makes the content of `summary.json`, and reads it for tables, figures and words.

`pairing` lines up runs. It may import `data` and `statistics`. To add a number to `summary.json`,
add it in `document.py`; a metric appears there by itself. To read one, use `lookup.py`.
"""
