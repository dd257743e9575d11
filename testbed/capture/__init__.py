"""A run's packets: recording links (`recorder`), and reading captures (`dissect`, `layers`).

`layers` is for people with scapy; `dissect` tells what happened without it, because a capture of
one run holds more packets than scapy can take apart while somebody waits.
"""
