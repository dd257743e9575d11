"""Captures: records hosts' links during a run (`recorder`), reads captures (`dissect`, `layers`).

May import lab, transport and shared. `dissect` reads without scapy: the capture of one run holds
more packets than scapy takes apart while somebody waits. `layers` shows the same packets to scapy.
To add a fact of a transfer: count it in `transfers`, print it in `rendering`.
"""
