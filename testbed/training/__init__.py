"""The built-in training workload: a parameter server and workers that train over the transport.

To add a filling, see `fillings`; a model, data set or phase detector, see that sub-package; an
optimiser or a learning-rate schedule, see `settings`. It imports the controller's client, and
nothing else of the lab.
"""
