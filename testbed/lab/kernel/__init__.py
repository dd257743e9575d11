"""Linux, each interface of it in one file: netlink, namespaces, queues, filters, XDP.

It may import `testbed.shared` and `testbed.lab.loss_table`. To use something new of the kernel, add
a file that hides its format: messages about links and queues go to `rtnetlink`, external programs
run through `commands.run`, and a refusal is a `CommandError` of one line.
"""
