"""The transport's benchmark: measured in a sandbox of its own, beside kernel TCP and Gloo.

`cases` says what is measured, `network` builds the links, `flows` runs one case on them,
`records` turns its figures into the record of `./lab bench transport --json FILE`, `figure` draws
and `console` prints. May import what `testbed.bench` may. To add a case: a generator in `cases`;
another transport to compare with: a branch of `flows.run`.

A record holds the case's parameters, `byte_bound_s`, `completion_s`, `ratio_to_bound`, and:

    status         "ok", "timeout" (limit_s was over), "unsupported: why", or a failure's words
    n, completion_min_s, completion_max_s      of the repetitions; all other values are medians
    goodput_bps    payload that arrived, over the completion time
    cpu_s_per_gb_* process time per 1e9 bytes of payload that arrived (of all senders together);
                   what the kernel does in its own threads or in another's time is not in it
    control_share  control bytes over all bytes sent
    jain, link_busy    of an incast: fairness of the flows, and what the shared link carried over
                   what it could have
"""
