"""The lab from Python: `with Lab.from_experiment("quick") as lab:`, in scripts and tests.

The script runs outside the sandbox. The first process inside begins the lab (`inside`) and becomes
the `steward`, which carries out what `lab.Lab` asks for. `./lab shell` begins alike, and its first
process opens Mininet's prompt (`prompt`). May import run and what lies below. To add something that
a lab can do: a method of `steward.Steward` named `do_NAME`, and one of `Lab` that asks for it. To
add a command of the prompt: a method `do_NAME` of `prompt.Prompt`, whose docstring is its help.
"""
