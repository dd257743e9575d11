"""Makes the content of `summary.json` and reads it; may import `data` and `statistics`.

A metric appears in it by itself; `document.py` adds other numbers, `lookup.py` reads them.
"""
