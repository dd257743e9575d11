"""The sockets beneath the protocol: UDP in batches, kernel TCP, control connections, a driver."""
