"""The protocol without sockets, clocks or threads: what arrives at a time goes in, what is due
comes out.

`connection.Connection` is everything between two peers; `outgoing` and `incoming` hold its two
directions, and the two halves of one transfer; `congestion`, `order`, `repair` and `tolerance` hold
the interfaces of what can be swapped. Imports numpy, the standard library and `testbed.shared`. Add
here what every protocol shares; what a protocol may choose is in `testbed.transport.policies`.
"""
