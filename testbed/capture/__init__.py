"""Captures: `recorder` records hosts' links during a run, `layers` shows our packets to scapy.

May import lab, transport and shared. `reading` prints what the layers see.
"""
