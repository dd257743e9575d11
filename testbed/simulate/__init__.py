"""The transport in virtual time: its own `Connection` objects, driven over links that misbehave.

`engine` has the clock, `train` what travels, `link` what carries it and `arrivals` where it ends.
`party` drives one connection as `testbed.transport.net` does with sockets, and `cluster` joins a
server and its workers. `endpoint` is the transport's for programs that block: `tasks` runs these,
one at a time, and `streams` are their other sockets. A run repeats itself exactly, and takes as
long as its events take to compute.

Imports the transport alone. Add a kind of link to `link`, never a second engine.
"""
