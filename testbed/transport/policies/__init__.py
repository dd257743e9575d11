"""What can be swapped: tolerances, repairs, chunk orders, marks and congestion controls.

Their interfaces are in `testbed.transport.core`. Each sub-package is a registry; its docstring
says how to add to it. They import numpy, `testbed.shared` and the core alone.
"""
