"""The lab from Python: `with Lab.from_experiment("quick") as lab:`, in scripts and tests.

The first process in the sandbox (`inside`) becomes the `server` that answers `lab.Lab`, or opens
the `prompt` of `./lab shell`. To add something that a lab can do: a method `do_NAME` of
`LabServer`, and one of `Lab` that asks for it; or a `do_NAME` of `Prompt` with its help. Imports
run and what lies below.
"""
