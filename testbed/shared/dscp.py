"""What datagrams of two classes carry in their IP header (DSCP), and a lab's queues look for.

Two drop precedences of one class of assured forwarding (RFC 2597): a switch that knows them drops
the second first. MLT's own values are not known to us.
"""

PROTECTED = 34  # AF41
DROPPED_FIRST = 38  # AF43
