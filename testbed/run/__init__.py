"""From a planned run to a finished run directory.

`runner` starts a sandbox for each run. In it `supervisor` has the lab built, calibrated and watched
(`session`), runs the workload in it and writes the verdict. A workload is `training_workload`,
whose processes `training_launcher` forks (`shared_processes`: several workers in one), or
`program_workload`. `session` and `by_hand` serve the prompt and scripts, too. May import all rooms
below it: experiment, capture, sampling, training, verdict, workload, controllers, lab, transport,
topologies, shared.
To add a fact of a run: `manifest` for system facts, `session` for what is measured.
"""
