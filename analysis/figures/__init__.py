"""The figures of the report.

It may import what lies below, not `tables`. To add a figure, write a
function that returns a matplotlib figure or None, and an entry for it in `catalogue.py`. Colours
and markers of the arms are in `style.py`.
"""
