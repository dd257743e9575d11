"""Workloads of a user's own: any programs on a lab's hosts, in place of the built-in training.

`markers` is the protocol by which programs announce rounds; `torchrun` makes programs of a training
script's ranks, and has the table of all kinds. To add a key of a program: a field in `settings`,
and what it does in `testbed.run.workloads`. To add a kind: a section and its arms as in `torchrun`.
Imports the controller's socket, the transport and shared.
"""
