"""`./lab shell`: Mininet's prompt in an experiment's network, with impairments by command.

`set` changes a link while it works, and `lab` shows what is set. May import run, verdict,
controllers, lab and shared. To add a command: a method `do_NAME` of `commands.Prompt`, whose
docstring is its help.
"""
