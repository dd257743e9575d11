"""DSCP values of two classes of datagrams, which a lab's queues tell apart."""

# Two drop precedences of one class of assured forwarding (RFC 2597). MLT's own are not known to us.
PROTECTED = 34  # AF41
DROPPED_FIRST = 38  # AF43
