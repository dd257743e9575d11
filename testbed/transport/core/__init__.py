"""The protocol without sockets, clocks or threads: all is in `connection.Connection`.

It imports numpy and `testbed.shared`. Add here what every protocol shares.
"""
