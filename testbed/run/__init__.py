"""From a planned run to a finished run directory.

`runner` starts a sandbox for each run; in it `supervisor` builds the lab (`assembly`), calibrates
it, trains in it (`training_launcher`) and writes the verdict. May import all rooms below it:
experiment, capture, sampling, training, verdict, controllers, lab, transport, topologies, shared.
To add a fact of a run: `manifest` for system facts, `supervisor` for what is measured.
"""
