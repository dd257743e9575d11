"""Captures: `recorder` records hosts' links during a run, `layers` shows our packets to scapy.

May import lab, transport and shared. `reading` prints what the layers see. To add a kind of packet:
a layer in `layers`, and its row in `reading`.
"""
