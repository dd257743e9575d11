"""What a protocol may choose: tolerances, repairs, orders, marks and congestion controls.

Each is a registry that says how to add to it, and imports numpy, `testbed.shared` and the core.
"""
