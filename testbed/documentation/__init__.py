"""The documentation's site, and the parts of its reference pages that come from the code.

May import every room: it reads their declarations. Nothing imports it but the verb `docs`, MkDocs
(`hook.py`, named in mkdocs.yml) and tests. To add a generated part: a function in a file here
that returns Markdown, its name in `hook.PARTS`, and the line `<!-- generated: NAME -->` in a page.
"""
