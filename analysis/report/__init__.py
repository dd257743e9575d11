"""Writes the report's folder, its timeline, and the results that are kept in the repository.

`kept_pages` writes the pages' blocks from what is kept, and `verification` recomputes both.

A program of `templates/` runs only on pages that name it in their `policy`;
tests/analysis/test_browser.py drives the pages in Chromium.

It may import all other rooms of the analysis. To add to the page, edit `templates/`; `writing.py`
says what the page is given, and draws its figures. To add a caution, write a function in
`remarks.py`.
"""
