"""The transport in virtual time: its own `Connection` objects, driven over links that misbehave.

`engine` has the clock, `link` what travels and what carries it, `way` a path of links and
`arrivals` its end. `party` drives one connection as `testbed.transport.net` does with sockets.
`endpoint` joins a server and its workers, for programs that block: `tasks` runs these. Imports
numpy, greenlet and the transport. Add a kind of link to `link`.

Three things keep events few. A sender's plan goes ahead as one train (`party.Ahead`), until
something happens to it. A link serves what has come when someone looks at what lies behind it. A
receiver looks when something may have come that counts.
"""
