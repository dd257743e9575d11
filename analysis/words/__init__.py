"""Numbers and findings as short rows: formatting, headline, cautions and methods.

Imports the summary and what lies below it. To add a caution, write a function in `cautions.py`
that returns lines, and name it in `lines`.
"""
