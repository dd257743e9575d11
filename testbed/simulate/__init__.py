"""The transport in virtual time: its own `Connection` objects, driven over links that misbehave.

`engine` has the clock, `link` what travels and what carries it. `peer` drives one side of a
connection as `testbed.transport.net` does with sockets. `endpoint` joins a server and its workers,
for programs that block: `tasks` runs these. It imports numpy, greenlet and the transport. To add a
kind of link: a class in `link`.

Three things keep events few. A sender's plan goes ahead as one train (`peer.Ahead`), until
something happens to it. A link serves what has come when someone asks for what comes out. A
receiver reads when something may have come that counts.
"""
