"""What makes a run believable: calibration before it, counters and headroom during it, then gates.

`calibration` measures every path and queue of the idle network, `run_observer` reads counters and
watches the processor while the run trains, and `gates` compares all of it with the experiment's
`limits`. The package may import `testbed.lab` and `testbed.shared`. To add a gate: a function in
`gates` that returns a `Gate`, and its limit in `limits`.
"""
