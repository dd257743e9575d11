"""`./lab shell`: Mininet's prompt in an experiment's network, with impairments by command.

May import run, verdict, controllers, lab and shared. To add a command: a method `do_NAME` of
`commands.Prompt`, whose docstring is its help.
"""
