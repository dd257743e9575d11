"""Makes a run believable: calibration before it, samples and counters during it, then gates.

`calibration` measures every path and queue of the idle network. `sampler`, a process of its own,
fills `samples/`. `run_observer` reads counters and watches the processor while the run goes on, and
`gates.judge` compares all of it with the experiment's `limits`. The
package may import `controllers`, `testbed.lab` and `testbed.shared`; what the sampler imports, the
latter two alone.

To add a gate: an entry in `gates`, the function that it names, which returns a `Finding`, and a lab
that is wrong in that way in tests/lab/gates/. What could not be measured must say so. To add a
sample: a class that fills a `store.ChunkedTable`, in `sampler.Sampler`.
"""
