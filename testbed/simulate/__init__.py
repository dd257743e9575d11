"""The transport in virtual time: its own `Connection` objects, driven over links that misbehave.

Three things keep events few. A sender's plan goes ahead as one train (`peer.Ahead`), until
something happens to it. A link serves what has come when someone asks for what comes out. A
receiver reads when something may have come that counts. It imports numpy, greenlet and the
transport. To add a kind of link: a class in `link`.
"""
