"""The parts of the documentation's reference pages that come from the code.

May import every room: it reads their declarations. Nothing imports it but MkDocs (`hook.py`, named
in mkdocs.yml) and tests; the verb `docs` starts MkDocs, in testbed/cli/documentation_site.py.
To add a generated part: a function in a file here that returns Markdown, its name in `hook.PARTS`,
and the line `<!-- generated: NAME -->` in a page. What shall stand in the page's own file, too: in
`written.PARTS`.
"""
