"""Makes the content of `summary.json` and reads it; may import `data` and `statistics`.

To add a number, compute it in `document.py`; metrics appear by themselves. `lookup.py` reads them.
"""
