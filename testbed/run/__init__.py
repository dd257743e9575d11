"""From a planned run to a finished run directory.

`runner` starts a sandbox for each run. In it `supervisor` has the lab built, calibrated and watched
(`session`), runs one of the `workloads` in it and writes the verdict; the processes of training are
forked by `training_launcher`. `session` serves the prompt and scripts, too. May import
all rooms below it: experiment, capture, training, verdict, workload, controllers, lab, transport,
topologies, shared.
To add a fact of a run: `manifest` for system facts, `session` for what is measured.
"""
