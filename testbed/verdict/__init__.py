"""Makes a run believable: calibration before it, samples and counters during it, then gates.

The package imports `controllers`, `testbed.lab` and `testbed.shared`; what the sampler imports, the
latter two alone. To add a gate: an entry in `gates`, the function that it names, which returns a
`Finding`, and a lab that is wrong in that way in tests/lab/gates/. What could not be measured must
say so. To add a sample: a class that fills a `store.ChunkedTable`, in `sampler.Sampler`.
"""
