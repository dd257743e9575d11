"""What makes a run believable: calibration before it, counters and headroom during it, then gates.

`calibration` measures every path and queue of the idle network, `run_observer` reads counters and
watches the processor while the run trains, and `gates` compares all of it with the experiment's
`limits`. The package may import `controllers`, `testbed.lab` and `testbed.shared`.

To add a gate: a field with its explanation in `limits`; a function `gates` in the module that
measures, which returns `Gate`s; a line in `gates.judge`; a row in docs/concepts/verdicts.md; and a
lab that is wrong in that way in tests/lab/gates/. What could not be measured must say so.
"""
