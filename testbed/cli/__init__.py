"""The verbs of `./lab`, their options, and what the terminal shows.

May import every room but `documentation`; nothing but `testbed/__main__.py` and the documentation
imports it. To add a verb: a function in `verbs` that reads its input, calls one function and prints
the result, with an example as its epilog; options of several verbs belong in `options`.
"""
