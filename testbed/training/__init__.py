"""The built-in training workload: a parameter server and workers that train over the transport.

To add a model, data set, phase detector or filling, see that sub-package; for an optimiser or a
learning-rate schedule, see `optimisers` and `learning_rate`. Imports nothing of the lab.
"""
