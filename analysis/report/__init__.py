"""Writes the report's folder, its timeline, and the results that are kept in the repository.

`verification` recomputes what is kept; `sentences` holds the pages' numbers to it.

It may import all other rooms of the analysis. To add to the page, edit `templates/`; `writing.py`
says what the page is given.
"""
