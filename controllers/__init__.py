"""The SDN controller: an application that forwards packets and impairs the network on schedule.

It imports `testbed.lab`, `testbed.shared` and `testbed.transport`. Only `framework.py` imports the
framework, Ryu. To add an impairment, see `controllers.impairments`.
"""
