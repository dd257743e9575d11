"""Writes the report's folder, its timeline, and the results that are kept; may import all rooms.

To add to the page, edit `templates/`; `writing.py` says what it is given. A program of `templates/`
runs only on pages that name it in their `policy`.
"""
