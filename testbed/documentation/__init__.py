"""The documentation's reference pages, written from the code, and MkDocs' hook for links.

May import every room. To add a part: a function in `reference`, its name in `parts`, and its two
marks in a page.
"""
