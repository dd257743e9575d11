"""The private emulated network of one run: sandbox, Open vSwitch, Mininet network, links, delays.

It may import `testbed.transport` and `testbed.shared`. What talks to the kernel
belongs in `kernel`, programs in hosts in `helpers`, delay in the middle of links in `delay`; a new
property of links begins in `network.LinkEnds` and is changed while the lab runs in `link_control`.
"""
