"""The sockets beneath the protocol: UDP in batches, kernel TCP, control connections, a driver.

It imports the rest of the transport, numpy and the standard library. Add here what talks to the
kernel; what can be decided without a socket belongs one folder above.
"""
