"""The SDN side of the lab: a Ryu application that forwards, and that hurts the network on schedule.

Only `framework.py` imports Ryu; impairment parameters and the timeline load without it.
"""
