"""The transport's benchmark: measured in a sandbox of its own, beside kernel TCP and Gloo.

`cases` says what is measured, `network` builds the links, `measurement` runs the cases on them,
whose processes `conductor` leads, `records` turns their figures into the records of `./lab bench
transport --json FILE`, and `console` prints and draws. `./lab bench peer`
is the same with cases of its own. May import what `testbed.bench` may. To add a case: a generator
in `cases`; another transport to compare with: an adapter (`testbed.bench.peer`).

A record holds the case's parameters, `byte_bound_s`, `completion_s`, `ratio_to_bound`, and:

    status         "ok", "timeout" (a transfer took longer than limit_s), "unsupported: why", or
                   "failed: " with the host and its words
    n, completion_min_s, completion_max_s      of the repetitions; other values are medians
    *_low, *_high (completion_low_s, ...)      the interval of the median, 95 %, within this run
    narrow         whether the intervals of completion and processor time are (`records`)
    peer           ours, tcp-cubic (and so on), gloo, or another implementation's adapter
    goodput_bps    payload that arrived, over the completion time
    cpu_s_per_gb_* process time per 1e9 bytes of payload that arrived (of all senders together);
                   what the kernel does in its own threads or in another's time is not in it
    cpu_s_per_gb_wire_*    the same per 1e9 bytes that the senders' interfaces sent
    wire_bytes     these bytes: frames with headers and control messages; what losses repeat
    control_share  control bytes over all bytes sent
    jain, link_busy    of an incast: fairness of the flows, and what the shared link carried over
                   what it could have
"""
