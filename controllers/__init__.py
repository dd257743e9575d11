"""The SDN side of the lab: an application that forwards, and that hurts the network on schedule.

Only `framework.py` imports the framework, Ryu or os-ken; the rest loads without it.
"""
