"""The sockets beneath the protocol: UDP in batches, kernel TCP, control connections, a driver.

Imports the core, the policies, `protocols`, `testbed.shared`, numpy and the standard library. Add
here what talks to the kernel; what can be decided without a socket belongs in
`testbed.transport.core`.
"""
