"""The protocol without sockets, clocks or threads: what arrives at a time goes in, what is due
comes out. `connection.Connection` is everything between two peers.
"""
