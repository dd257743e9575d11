"""From a planned run to a finished run directory.

`runner` starts a sandbox for each run. In it `supervisor` builds the lab (`assembly`), has it
calibrated and watched (`observed_lab`), runs the workload in it (`training_workload`, whose
processes `training_launcher` forks) and writes the verdict. May import all rooms below it:
experiment, capture, sampling, training, verdict, controllers, lab, transport, topologies, shared.
To add a fact of a run: `manifest` for system facts, `observed_lab` for what is measured.
"""
