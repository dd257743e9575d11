"""Probes what this machine can do (`capabilities`) and holds now (`steadiness`), and
removing what labs left (`clean`).

May import run, verdict, controllers, lab, transport, topologies and shared. To add a probe: a
function that tries the thing, its entry in `capabilities._inside`, and a row of `capabilities.csv`.
"""
