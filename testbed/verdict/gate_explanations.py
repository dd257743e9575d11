"""What `./lab explain` and the documentation say about each gate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a reader should know of a gate."""

    title: str
    measured: str  # what is compared with the limit
    evidence: str  # the file of the run directory, and the key in it
    causes: str  # what usually brings the value beyond the limit
    remedy: str


_SLOWER = "Choose a lower rate; ./lab check --deep finds the highest one that this machine holds."
_ALONE = "Close other programs, or run when the machine is idle. ./lab run tries again."
_ROUND_TRIP = Explanation(
    title="round trip",
    measured="Before training, probes cross every path of the idle network. The gate takes the "
    "error of the worst path's round-trip time.",
    evidence="calibration.json: links[].rtt_s beside links[].configured_rtt_s",
    causes="Every switch costs time. So deep networks miss short delays, and so does a busy "
    "machine.",
    remedy="Give the links a delay, or lower their rate. Close other programs. Or raise "
    "limits.rtt_error_s, and say so when you publish.",
)
_DELAY = Explanation(
    title="delay",
    measured="During training, the relay of delayed links notes when each frame arrived and when "
    "it left. The gate takes the quarter of a second in which a link's mean delay was farthest "
    "from the configured one. With jitter, the mean may be longer by all of it, and shorter by "
    "chance; what frames drew must have the jitter's spread, but for chance. What the links "
    "were set to in the end must be what was configured, or set by hand, too. Of netem, only this "
    "is known. Frames that a link's queue sent after it was set by hand must have come there.",
    evidence="delay.json: delays[].wait_least_s, delays[].wait_most_s and "
    "delays[].drawn_jitter_s, beside the link's configured delay and jitter",
    causes="The machine was busy, or something changed the delay while the run went on.",
    remedy=f"{_ALONE} Let nothing but the experiment change links.",
)

GATES: dict[str, Explanation] = {
    "rate_error": Explanation(
        title="rate",
        measured="Before training, every path carries as much as it can, for about 0.2 s. Each "
        "stretch of 5 ms is a trial; both are longer where links have jitter or low rates. The "
        "median of all trials is the path's rate. The gate takes the worst path's error. Frames "
        "that the links are configured to lose count as carried.",
        evidence="calibration.json: links[].rate_bps beside links[].configured_rate_bps; "
        "links[].rate_trials",
        causes="The rate is too high for the processors, or other programs took them meanwhile.",
        remedy=f"{_SLOWER} {_ALONE}",
    ),
    "rate_spread": Explanation(
        title="rate spread",
        measured="The interquartile range of the same trials, as a share of the configured rate: "
        "a quarter of the trials was slower, a quarter faster. The gate takes the worst path's.",
        evidence="calibration.json: links[].rate_spread and links[].rate_trials",
        causes="The shaper was not served in time: other programs took the processors, or timers "
        "are late on this machine.",
        remedy=f"{_ALONE} {_SLOWER}",
    ),
    "rtt_error": _ROUND_TRIP,
    "rtt_error_s": _ROUND_TRIP,
    "idle_loss": Explanation(
        title="idle loss",
        measured="Before training, probes cross every path of the idle network. The gate takes the "
        "share that did not come back. Where links have a loss, more probes may be missing: as "
        "many as that loss takes by chance, there and back, in all but one of a million cases.",
        evidence="calibration.json: links[].probes_lost of links[].probes_sent, beside "
        "links[].configured_probe_loss",
        causes="The machine was too busy to receive them in time, or something lost packets that "
        "no link is configured to lose.",
        remedy=_ALONE,
    ),
    "queue_error": Explanation(
        title="queue",
        measured="Before training, every queue is filled until it drops. The gate takes the share "
        "by which the fullest state missed the configured limit.",
        evidence="calibration.json: queues[].peak_bytes beside queues[].limit_bytes",
        causes="The queue drained while it was filled, because the machine was busy or the queue "
        "holds only a few packets.",
        remedy=f"Choose queues of ten packets or more. {_ALONE}",
    ),
    "socket_buffer_bytes": Explanation(
        title="socket buffer",
        measured="All ports of the switch send through one socket. The gate takes the bytes by "
        "which the deepest queue exceeds that socket's buffer. The kernel's datapath has no such "
        "socket.",
        evidence="manifest.json: switch_sockets.send_bytes",
        causes="An ordinary user may not enlarge the buffer. A queue that does not fit never "
        "drops.",
        remedy="Choose a smaller queue_bytes, or run as root.",
    ),
    "link_settings": Explanation(
        title="settings",
        measured="Before and after the training, the kernel is asked how it shapes every link: "
        "HTB's rate, ceiling and bucket, the queue's limit, from where on it marks (ECN), and the "
        "most segments of a packet. Meanwhile the kernel tells of changes of all but the "
        "segments. The gate counts the settings that are not as configured and that no impairment "
        "in force may have changed.",
        evidence="link_settings.json: differences[]",
        causes="A program outside the lab changed an interface, or an impairment did not set back "
        "what it had changed.",
        remedy="Leave the lab's interfaces alone while it runs; ./lab shell and impairments change "
        "them on the record.",
    ),
    "packet_bytes": Explanation(
        title="packets",
        measured="During training, every queue's bytes and packets are sampled. The gate takes the "
        "largest mean size of the packets that a sample found waiting, the largest of each queue "
        "left out, because a queue's counters are not read at one instant.",
        evidence="links_under_load.json: links[].packet_bytes; samples/queues.parquet: "
        "backlog_bytes over backlog_packets",
        causes="A program sends with UDP_SEGMENT, or something changed gso_max_segs or offloads "
        "of an interface. Then several frames are queued, counted and dropped as one packet.",
        remedy="Send datagrams one by one (EndpointConfig.segmentation), and leave the interfaces' "
        "offloads as the lab sets them.",
    ),
    "rate_under_load": Explanation(
        title="rate under load",
        measured="During training, the bytes that each link sent while its queue cannot have run "
        "empty, over those that its rate allows. The gate takes the worst link, over all such time "
        "and in each half second of it, if there is a quarter of a second or more. However short "
        "that time is: what did not leave in it, within half a second, over what the rate allows "
        "in that half second. Whatever the queue held, no quarter of a second may exceed the rate.",
        evidence="links_under_load.json: links[].delivered, links[].worst, links[].missing and "
        "links[].most",
        causes="The processors were busy with something else, so that the kernel's shaper woke up "
        "late. Or something outside the lab changed the shaper.",
        remedy=f"{_SLOWER} {_ALONE}",
    ),
    "conservation": Explanation(
        title="conservation",
        measured="After training, the counters of both ends of every link are compared, and those "
        "of every switch. The gate takes the largest share of packets that nothing explains. Its "
        "note says how many packets could have vanished unseen, where that is not zero.",
        evidence="conservation.json: links[].unexplained and switches[].unexplained",
        causes="A part of the emulator lost packets without counting them.",
        remedy=f"{_SLOWER} {_ALONE} If it stays, please report it with the run directory.",
    ),
    "emulator_losses": Explanation(
        title="emulator's losses",
        measured="After training, the packets that a part of the emulator lost by accident: the "
        "socket of a switch's port, an interface on a link, or the middle of a delayed link. In "
        "the kernel's datapath, also first packets of flows that its daemon was too late for. The "
        "gate takes the part that lost most. A full queue and a full socket of a worker are no "
        "accidents: what they lose is a result.",
        evidence="conservation.json: links[].socket_drops, links[].interface_drops, "
        "links[].delay_drops and lost_upcalls",
        causes="The switch or the delay relay did not run for a while, and what waited for it "
        "did not fit.",
        remedy=f"{_SLOWER} {_ALONE}",
    ),
    "cpu_wait_s": Explanation(
        title="processor",
        measured="During training, the kernel counts how long each thread of the switch, the "
        "controller and the delay relay was ready but did not run, and how often. The gate takes "
        "the second in which the mean wait of a thread was longest. Packets wait so much longer "
        "than the links make them. A thread that hardly ran in that second and the one before "
        "carries none and does not count.",
        evidence="conservation.json: headroom.waited",
        causes="The hosts' training and other programs leave the emulator too little time.",
        remedy=f"{_ALONE} Use fewer workers, a smaller model, or a lower rate.",
    ),
    "cpu_others": Explanation(
        title="other programs",
        measured="During training, the processors' time that processes outside the lab used, as a "
        "share of all of it. It counts only while something waited for a processor.",
        evidence="conservation.json: headroom.others and headroom.pressure; programs.json: the "
        "programs that used most",
        causes="Other programs ran on this machine. The reason names the three that used most, "
        "with the share of each. If it names none, they ran in another container or virtual "
        "machine, or for a second or two only.",
        remedy="Close the programs that the reason names, or run when the machine is idle. "
        "ps -eo pid,pcpu,args --sort=-pcpu shows which they are. ./lab run tries again.",
    ),
    "impairment_late_s": Explanation(
        title="lateness",
        measured="The time between the planned and the acknowledged begin or end of an impairment: "
        "the longest of all. Occurrences that neither began nor were skipped, or never ended, "
        "make it not measured. An occurrence is skipped if its leg or the run ends before it is "
        "due. One that did not begin because the one before was still in force makes it not "
        "measured, too.",
        evidence="events/impairments.jsonl: planned_s beside acknowledged_s",
        causes="The controller waited for a processor. Or a duration_s is longer than the time "
        "from one occurrence to the next, such as a round.",
        remedy=f"{_ALONE} Use fewer workers or impairments that change less often. Shorten the "
        "duration_s of an impairment that the reason names, or leave rounds between its rounds.",
    ),
    "impairments_unmet": Explanation(
        title="impairments met",
        measured="Each impairment counts what it could act on: packets that crossed its place, "
        "frames that it sent. The gate takes the number of impairments that met nothing in all "
        "their occurrences.",
        evidence="events/impairments.jsonl: met",
        causes="It was in force when or where nothing was sent: on another link or direction, in a "
        "pause, or with a loss that spares all that came.",
        remedy="Name the link, leg and rounds that carry the traffic. A loss hits other than the "
        "training's data with spare_control: false.",
    ),
    "loss_error": Explanation(
        title="realised loss",
        measured="For each occurrence of a `loss`, the packets that were lost are compared with "
        "those that its table says, and none may differ. For each link with a loss, and losses of "
        "users' own, the share of packets that were lost is compared with the configured one. The "
        "gate takes the worst difference. Of these it allows what chance explains, in all but one "
        "of a million runs; its note says which difference could have been seen.",
        evidence="events/impairments.jsonl: dropped beside met; conservation.json: "
        "links[].delay_lost beside links[].sent",
        causes="A filter or the delay relay does not do what it was told, or something else "
        "changed it.",
        remedy="Look for programs that change the hosts' nftables or the links' queues. If it "
        "stays, please report it with the run directory.",
    ),
    "samples_missing": Explanation(
        title="samples",
        measured="The sampler reads queues, flows and processes a hundred times a second. The gate "
        "takes the share of these samples that it was too late for, that the kernel answered too "
        "late or in part, or of one kind that failed. More than two seconds without any sample "
        "leave the gate not measured.",
        evidence="samples/sampler.json: samples_lost, answers_left_out, answers_too_late and "
        "parts.*.errors beside ticks; largest_gap_s",
        causes="The sampler waited for a processor, or it died.",
        remedy=f"{_ALONE} See logs/sampler.log if it died.",
    ),
    "relay_late_s": Explanation(
        title="relay",
        measured="During training, the relay of delayed links notes how long after its time each "
        "frame leaves. The gate takes the 99th percentile in the worst second.",
        evidence="delay.json: worst",
        causes="The relay waited for a processor, as an ordinary user's may, or was stopped.",
        remedy=f"{_ALONE} Run as root, where the relay runs ahead of all other programs.",
    ),
    "relay_late_max_s": Explanation(
        title="relay, one frame",
        measured="During training, the relay of delayed links notes how long after its time each "
        "frame leaves, or before it. The gate takes the frame that was farthest off.",
        evidence="delay.json: late_max_s, early_max_s",
        causes="The relay stood still for a moment: it was stopped, or the machine was.",
        remedy=f"{_ALONE} Run as root, where the relay runs ahead of all other programs.",
    ),
    "delay_error": _DELAY,
    "delay_error_s": _DELAY,
    "clock_stall_s": Explanation(
        title="stall",
        measured="A thread on each processor, of real-time priority where that is allowed, looks "
        "at the clock every few milliseconds. The gate takes the longest time that one of them "
        "could not, beyond that rhythm.",
        evidence="conservation.json: headroom.stalls[].longest_s",
        causes="A processor stood still: the hypervisor gave it to another machine, the kernel was "
        "busy with something that it does not interrupt, such as the end of another lab, or the "
        "machine was suspended.",
        remedy="Keep the machine awake, and let no other lab begin or end meanwhile. On a virtual "
        "machine, ask for processors of its own. ./lab run tries again.",
    ),
    "standstill_s": Explanation(
        title="standstill",
        measured="A hundred times a second, of real-time priority where that is allowed, a thread "
        "looks whether the switch, the controller, the delay relay and the sampler have run since "
        "the last look, or sleep because they have nothing to do. The gate takes the longest time "
        "in which one of them was stopped, or waited for a lock, a disk or a processor; or in "
        "which nobody looked, since the whole sandbox stood still. A quarter of the median round "
        "passes if that is more than the limit.",
        evidence="conservation.json: standstills[]",
        causes="Something stopped the process (SIGSTOP, a debugger, a container that was paused), "
        "the machine was suspended, or other programs took the processors.",
        remedy=f"Leave the lab's processes alone, and keep the machine awake. {_ALONE}",
    ),
}
