"""From a planned run to a finished run directory.

`runner` starts a sandbox for each run. In it `supervisor` has the lab built, calibrated and watched
(`session`), runs one of the `workloads` and writes the verdict; `training_launcher` forks the
processes of training. May import all rooms below it, from experiment on. To add a fact of a run:
`manifest` for system facts, `session` for what is measured.
"""
