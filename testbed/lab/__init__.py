"""The private emulated network of one run: namespaces, Open vSwitch, Mininet, link shaping."""
