"""The numbers of simulated runs, kept to the last digit, for whoever takes the house apart.

Imports no room: it runs `./lab simulate` as a user does. To add an experiment, name it in
`test_net.py` and renew the net; a commit that renews it says which number changed and why.
"""
