"""The transport in virtual time: its own `Connection` objects, driven over links that misbehave.

`engine` has the clock, `link` what carries datagrams, `party` drives one connection as
`testbed.transport.net` does with sockets, and `cluster` joins a server and its workers. A run
repeats itself exactly, and takes as long as its events take to compute.

Imports the transport's core alone. Add a kind of link to `link`, never a second engine.
"""
