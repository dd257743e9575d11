"""Workloads of a user's own: any programs on a lab's hosts, in place of the built-in training.

`settings` is the section of YAML, and `markers` the protocol by which programs announce rounds.
`torchrun` makes programs of a training script's ranks, and has the table of all kinds.
`testbed.run.workloads` executes them. It may import the controller's socket, the transport
and shared. To add a key of a program: a field in `settings`, and what it does in
`workloads`. To add a kind that is made of programs: a section and its arms as in `torchrun`.
"""
