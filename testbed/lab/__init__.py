"""The private emulated network of one run: sandbox, Open vSwitch, Mininet network, links, delays.

It may import `testbed.transport` and `testbed.shared`. Code that talks to the kernel belongs in
`kernel`, programs in hosts in `helpers`, delay in the middle of links in `delay`. To add a property
of links: begin in `network.LinkEnds`; `link_control` changes it while the lab runs.
"""
