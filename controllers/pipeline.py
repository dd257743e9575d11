"""The switches' tables, in the order in which packets pass them.

First what impairments do to packets that arrive at a port, then what they do to those that leave
for a host, at last where the rest is forwarded to.
"""

ARRIVING_TABLE, LEAVING_TABLE, FORWARDING_TABLE = 0, 1, 2
