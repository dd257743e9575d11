"""The built-in training workload: a parameter server and workers that train over the transport.

It imports `testbed.transport`, `testbed.shared` and the client of the controller's socket, but
nothing of the lab. To add a model, data set, phase detector or filling, see that sub-package; for
an optimiser or a learning-rate schedule, see `optimisers` and `learning_rate`.
"""
