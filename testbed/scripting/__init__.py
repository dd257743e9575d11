"""The lab from Python: `with Lab.from_experiment("quick") as lab:`, in scripts and tests.

The script runs outside the sandbox. The first process inside (`first_process`, which becomes the
`steward`) builds the lab and carries out what `lab.Lab` asks for over a socket (`channel`), which
also hands programs their files. May import run and what lies below. To add something that a lab can
do: a method of `steward.Steward` named `do_NAME`, and one of `Lab` that asks for it.
`pytest_plugin` is for users' tests.
"""
