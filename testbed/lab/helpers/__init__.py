"""Helper processes in hosts of the lab, and the one way to talk to them (`process`).

It may import `testbed.lab.kernel` and `testbed.transport`. To add a helper: a file with a `main`
that reads `process.Requests`; who needs it starts it beforehand as a `process.HelperProcess`.
"""
