"""All gates, one entry each: limits, what is measured, what it means, what judges it; and `judge`.

The schema of an experiment's `limits`, `./lab explain`, and the page on verdicts come from them.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, create_model, field_validator
from pydantic.fields import FieldInfo

from testbed.shared.problems import Section
from testbed.shared.registry import one_of


@dataclass(frozen=True, kw_only=True)
class GateEntry:
    """A gate. Where it has two limits, the larger one counts."""

    ROW: ClassVar = ("key", "compared", "limit")
    what: str  # is compared, in a few words
    limits: Mapping[str, FieldInfo]  # by their keys; a description says what passes beyond
    measured: str  # the same at length
    evidence: str  # the file of the run directory, and the key in it
    causes: str  # what usually brings the value beyond the limit
    remedy: str
    judge: str  # module:function of this package; its arguments are evidence by name

    @property
    def name(self) -> str:
        unit = unit_of(list(self.limits)[-1])
        return f"{self.what} ({unit})" if unit else self.what

    @property
    def keys(self) -> str:
        return ", ".join(f"`{key}`" for key in self.limits)

    @property
    def row(self) -> tuple[str, ...]:
        passes = ", ".join(
            " ".join(filter(None, (f"{limit.default:g}", unit_of(key), limit.description)))
            for key, limit in self.limits.items()
        )
        return self.keys, self.what, passes

    @property
    def paragraph(self) -> str:
        return (
            f"### Gate {self.keys}\n\n{self.measured}\n\n- Evidence: `{self.evidence}`\n"
            f"- Usual cause: {self.causes}\n- What to do: {self.remedy}\n"
        )


def unit_of(key: str) -> str:
    """The unit of a limit; of a share or a number none."""
    return next((unit for unit in ("s", "bytes") if key.endswith(f"_{unit}")), "")


def _above(default: float, beyond: str = "", **further: Any) -> Any:
    return Field(default, gt=0, description=beyond, **further)


def _share(default: float, beyond: str = "") -> Any:
    return Field(default, ge=0, le=1, description=beyond)


def _count(default: float, **further: Any) -> Any:
    return Field(default, **{"ge": 0, **further})


_SLOWER = "Choose a lower topology.rate_bps."
_ALONE = "Close other programs, or wait for an idle machine. Then try again (./lab run)."
_RELAY = f"{_ALONE} Run as root, where the relay runs ahead of all other programs."

GATES: tuple[GateEntry, ...] = (
    GateEntry(
        what="relative error of a path's calibrated rate",
        limits={"rate_error": _above(0.03)},
        measured="Before training, every path carries as much as it can, in trials of 5 ms (longer "
        "where links have jitter or low rates). Their median, with the frames that links are "
        "configured to lose, is the path's rate. The gate takes the worst path's error.",
        evidence="calibration.json: links[].rate_bps beside links[].configured_rate_bps",
        causes="The rate is too high for the processors, or other programs took them meanwhile.",
        remedy=f"{_SLOWER} {_ALONE}",
        judge="calibration:rate",
    ),
    GateEntry(
        what="spread of the calibrated rate's trials",
        limits={"rate_spread": _above(0.05)},
        measured="The interquartile range of the same trials, as a share of the configured rate.",
        evidence="calibration.json: links[].rate_spread and links[].rate_trials",
        causes="The shaper woke up late: other programs took the processors, or timers are late.",
        remedy=f"{_ALONE} {_SLOWER}",
        judge="calibration:rate_spread",
    ),
    GateEntry(
        what="error of a calibrated round-trip time",
        limits={
            "rtt_error": _above(0.1, "as a share of the round trip"),
            "rtt_error_s": _above(0.0003, "for each switch on the path; the larger of both counts"),
        },
        measured="Before training, probes cross every path of the idle network. The worst counts.",
        evidence="calibration.json: links[].rtt_s beside links[].configured_rtt_s",
        causes="Every switch costs time, the more on a busy machine.",
        remedy="Give the links a delay, or lower their rate. Close other programs.",
        judge="calibration:round_trip",
    ),
    GateEntry(
        what="share of probes lost on the idle network",
        limits={"idle_loss": _share(0.0, "beyond what configured loss takes by chance")},
        measured="The share of the same probes that did not come back. Where links have a loss, "
        "as many may be missing as it takes by chance in all but one of a million cases.",
        evidence="calibration.json: links[].probes_lost of links[].probes_sent",
        causes="The machine was too busy to receive them in time, or something lost them.",
        remedy=_ALONE,
        judge="calibration:idle_loss",
    ),
    GateEntry(
        what="full queue beyond or short of its limit, as a share of it",
        limits={"queue_error": _count(0.0, description="beyond what can be resolved")},
        measured="Before training, every queue is filled until it drops. The gate takes the share "
        "by which the fullest state missed the configured limit.",
        evidence="calibration.json: queues[].peak_bytes beside queues[].limit_bytes",
        causes="It drained while it was filled: the machine was busy, or it holds few packets.",
        remedy=f"Choose queues of ten packets or more. {_ALONE}",
        judge="calibration:queue_limits",
    ),
    GateEntry(
        what="queue that the switch's socket buffer cannot hold",
        limits={"socket_buffer_bytes": _count(0)},
        measured="All ports of the switch send through one socket; the kernel's datapath has none. "
        "The gate takes the bytes by which the deepest queue exceeds that socket's buffer.",
        evidence="manifest.json: switch_sockets.send_bytes",
        causes="An ordinary user may not enlarge the buffer.",
        remedy="Choose a smaller queue_bytes, or run as root.",
        judge="calibration:socket_buffer",
    ),
    GateEntry(
        what="unexplained share of packets",
        limits={"conservation": _share(0.00001)},
        measured="After training, the counters of both ends of every link and of every switch are "
        "compared. The gate takes the largest share of packets that nothing explains, of links, "
        "switches and hosts' kernels; its note says how many packets could have vanished unseen.",
        evidence="conservation.json: unexplained of links and switches, vanished of hosts",
        causes="A part of the emulator lost packets without counting them.",
        remedy=f"{_SLOWER} {_ALONE} If it stays, please report it with the run directory.",
        judge="conservation:unexplained",
    ),
    GateEntry(
        what="packets that one part of the emulator lost by accident",
        limits={"emulator_losses": _count(0)},
        measured="The packets that the socket of a switch's port, an interface or the middle of a "
        "delayed link lost; in the kernel's datapath, also first packets of flows that its daemon "
        "was too late for. The gate takes the part that lost most. What full queues lose, and full "
        "sockets of workers, is a result.",
        evidence="conservation.json: links[].socket_drops, links[].interface_drops, "
        "links[].delay_drops and lost_upcalls",
        causes="The switch or the delay relay did not run for a while.",
        remedy=f"{_SLOWER} {_ALONE}",
        judge="conservation:emulator_losses",
    ),
    GateEntry(
        what="mean wait of the emulator for a processor, in its worst second",
        limits={"cpu_wait_s": _above(0.0005)},
        measured="During training, the kernel counts how long each thread of the switch, the "
        "controller and the delay relay was ready but did not run, and how often. The gate takes "
        "the second with the longest mean wait of a thread that ran often enough to be judged.",
        evidence="conservation.json: headroom.waited",
        causes="The hosts' training and other programs leave the emulator too little time.",
        remedy=f"{_ALONE} Use fewer workers, a smaller model, or a lower rate.",
        judge="processor_headroom:waits",
    ),
    GateEntry(
        what="share of the processors' time that others took while something waited",
        limits={"cpu_others": _above(0.25)},
        measured="During training, the processors' time that processes outside the lab used, as a "
        "share of all of it. It counts only while something waited for a processor.",
        evidence="conservation.json: headroom.others and headroom.pressure",
        causes="Other programs ran on this machine, perhaps in another container.",
        remedy=f"{_ALONE} ps -eo pid,pcpu,args --sort=-pcpu shows which programs use most.",
        judge="processor_headroom:others",
    ),
    GateEntry(
        what="longest time that a processor stood still",
        limits={"clock_stall_s": _above(0.025)},
        measured="A thread on each processor, of real-time priority where that is allowed, reads "
        "the clock every few milliseconds. The gate takes the longest delay of one of them.",
        evidence="conservation.json: headroom.stalls[].longest_s",
        causes="The hypervisor or the kernel took the processor, or the machine was suspended.",
        remedy="Keep the machine awake, and let no other lab begin or end meanwhile. On a virtual "
        "machine, ask for processors of its own. Then try again (./lab run).",
        judge="processor_headroom:stalls",
    ),
    GateEntry(
        what="longest time that a part of the emulator stood still",
        limits={
            "standstill_s": _above(
                0.05,
                "or a quarter of the median round, if that is more",
                exclude_if=lambda limit_s: limit_s == 0.05,
            )
        },
        measured="A hundred times a second, a thread checks that the switch, the controller, the "
        "delay relay and the sampler have run, or sleep. The gate takes the longest time in which "
        "one of them was stopped, or waited for a lock, a disk or a processor; or in which the "
        "whole sandbox stood still.",
        evidence="conservation.json: standstills[]",
        causes="Something stopped the process (SIGSTOP, a debugger, a paused container) or the "
        "machine, or other programs took the processors.",
        remedy=f"Leave the lab's processes alone, and keep the machine awake. {_ALONE}",
        judge="processor_headroom:standstill",
    ),
    GateEntry(
        what="lateness of an impairment's begin or end",
        limits={"impairment_late_s": _above(0.01)},
        measured="The longest time between the planned and the acknowledged begin or end of an "
        "impairment. An occurrence that never ended, or did not begin although its leg and the run "
        "went on, makes it not measured.",
        evidence="events/impairments.jsonl: planned_s beside acknowledged_s",
        causes="The controller waited for a processor. Or a duration_s is longer than the time "
        "to the next occurrence.",
        remedy=f"{_ALONE} Use fewer workers or impairments that change less often. Shorten the "
        "duration_s of the impairment that the reason names.",
        judge="impairment_gates:lateness",
    ),
    GateEntry(
        what="impairments that met nothing",
        limits={"impairments_unmet": _count(0)},
        measured="Each impairment counts what it could act on: packets that crossed its place, "
        "frames that it sent. The gate counts the impairments that met nothing at all.",
        evidence="events/impairments.jsonl: met",
        causes="It was in force when or where nothing was sent, or spared all that came.",
        remedy="Name the link, leg and rounds that carry the traffic. A loss hits other than the "
        "training's data with spare_control: false.",
        judge="impairment_gates:unmet",
    ),
    GateEntry(
        what="share of a burst's frames that were not sent",
        limits={"burst_missing": _share(0.02)},
        measured="The kernel paces a burst's frames, which the controller queues some 50 ms ahead. "
        "The gate takes the burst that lacks the largest share of the frames that its rate and "
        "its length ask for.",
        evidence="events/impairments.jsonl: details.frames_due beside frames_sent",
        causes="The controller waited for a processor, so the burst was weaker than configured.",
        remedy=f"{_ALONE} Choose a lower rate_factor, or larger frame_bytes.",
        judge="impairment_gates:weak_bursts",
    ),
    GateEntry(
        what="difference between realised and configured loss",
        limits={"loss_error": _share(0.0, "beyond what chance explains")},
        measured="Of each `loss`, the packets that were lost must be those that its table says. Of "
        "each link with a loss, and of losses of users' own, the share may differ from the "
        "configured one by what chance explains in all but one of a million runs. The gate takes "
        "the worst difference; its note says which one could have been seen.",
        evidence="events/impairments.jsonl: dropped, met; conservation.json: links[].delay_lost",
        causes="A filter or the delay relay does not work, or something changed it.",
        remedy="Look for programs that change the hosts' nftables or the links' queues. If it "
        "stays, please report it with the run directory.",
        judge="impairment_gates:realised_loss",
    ),
    GateEntry(
        what="settings of links that are not as configured",
        limits={"link_settings": _count(0)},
        measured="The kernel reports how it shapes every link before and after training, and all "
        "changes meanwhile: HTB's rate, ceiling and bucket, the queue's limit, its threshold of "
        "marks (ECN); and, before and after, the most segments of a packet. The gate counts what "
        "is not as configured and what no impairment in force may have changed.",
        evidence="link_settings.json: differences[]",
        causes="A program outside the lab changed an interface, or an impairment did not end.",
        remedy="Leave the lab's interfaces alone; ./lab shell changes them on the record.",
        judge="link_settings:differing_settings",
    ),
    GateEntry(
        what="mean size of the packets in a queue",
        limits={"packet_bytes": _count(1514, ge=1514)},
        measured="During training, every queue's bytes and packets are sampled. The gate takes the "
        "largest mean size but one of the packets in a queue: its counters are not read at once.",
        evidence="links_under_load.json: links[].packet_bytes",
        causes="A program sends with UDP_SEGMENT, or something changed gso_max_segs or offloads "
        "of an interface. Then several frames are queued, counted and dropped as one packet.",
        remedy="Send datagrams one by one (EndpointConfig.segmentation), and leave offloads alone.",
        judge="links_under_load:packet_sizes",
    ),
    GateEntry(
        what="error of the rate under load",
        limits={"rate_under_load": _above(0.03)},
        measured="During training, the bytes that each link sent while its queue cannot have run "
        "empty, over those that its rate allows. The gate takes the worst link, over all such "
        "time and in each half second of it, if there is a quarter of a second or more. What did "
        "not leave counts in any case, and no quarter of a second may exceed the rate.",
        evidence="links_under_load.json: links[].delivered, links[].worst and links[].missing",
        causes="The processors were busy, so the shaper woke up late; or something changed it.",
        remedy=f"{_SLOWER} {_ALONE}",
        judge="links_under_load:rates",
    ),
    GateEntry(
        what="share of the samples that are missing",
        limits={"samples_missing": _above(0.2, le=1)},
        measured="The sampler reads queues, flows and processes a hundred times a second. The gate "
        "takes the share of samples that were late, that the kernel answered late or in part, or "
        "of one kind that failed. Two seconds without any sample leave it not measured.",
        evidence="samples/sampler.json: samples_lost, answers_left_out and answers_too_late",
        causes="The sampler waited for a processor, or it died.",
        remedy=f"{_ALONE} See logs/sampler.log if it died.",
        judge="links_under_load:missing_samples",
    ),
    GateEntry(
        what="relay lateness, p99 of the worst second",
        limits={"relay_late_s": _above(0.003)},
        measured="During training, the relay of delayed links notes how long after its time each "
        "frame leaves. The gate takes the 99th percentile in the worst second.",
        evidence="delay.json: worst",
        causes="The relay waited for a processor, as an ordinary user's may, or was stopped.",
        remedy=_RELAY,
        judge="delay_gates:relay_lateness",
    ),
    GateEntry(
        what="relay lateness of a single frame",
        limits={"relay_late_max_s": _above(0.02)},
        measured="Of the same frames, the one that left farthest from its time, late or early.",
        evidence="delay.json: late_max_s, early_max_s",
        causes="The relay stood still for a moment: it was stopped, or the machine was.",
        remedy=_RELAY,
        judge="delay_gates:latest_frame",
    ),
    GateEntry(
        what="error of a link's delay in its worst quarter of a second",
        limits={
            "delay_error": _above(0.1, "as a share of the delay"),
            "delay_error_s": _above(0.0005, "if that is larger"),
        },
        measured="During training, the relay notes when frames arrived and left. The gate takes "
        "the quarter of a second in which a link's mean delay was farthest from the configured "
        "one; jitter may lengthen the mean by all of it, and shorten it by chance. In the end, "
        "links must be set as configured, or by hand; of netem, only this is known. "
        "Frames that left a queue after it was set by hand must have come to be delayed.",
        evidence="delay.json: delays[].wait_least_s and delays[].wait_most_s",
        causes="The machine was busy, or something changed the delay while the run went on.",
        remedy=f"{_ALONE} Let nothing but the experiment change links.",
        judge="delay_gates:delay",
    ),
)

BY_KEY = {key: entry for entry in GATES for key in entry.limits}
DEFAULTS: dict[str, float] = {key: entry.limits[key].default for key, entry in BY_KEY.items()}


def _field(key: str, entry: GateEntry) -> tuple[type, FieldInfo]:
    limit = entry.limits[key]
    words = ", ".join(filter(None, (entry.what, limit.description)))
    return type(limit.default), FieldInfo.merge_field_infos(limit, description=words)


if TYPE_CHECKING:
    _LimitsOfGates = Section
else:
    _LimitsOfGates = create_model(
        "_LimitsOfGates",
        __base__=Section,
        **{key: _field(key, entry) for key, entry in BY_KEY.items()},
    )


class Limits(_LimitsOfGates):
    """The largest values that pass; beyond them the emulator, not the protocol, decided."""

    run_timeout_s: float = Field(
        default=900.0, gt=0, description="a run that takes longer is ended and has failed"
    )
    waive: list[str] = Field(
        default=[],
        json_schema_extra={"items": {"type": "string", "enum": [*sorted(BY_KEY)]}},
        description="gates that do not decide; reports name them, and limits looser than default",
    )

    @field_validator("waive")
    @classmethod
    def _gates_are_known(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if key not in BY_KEY:
                raise ValueError(f"{key!r} is no gate; {one_of(key, sorted(BY_KEY))}")
        return keys


# Judging a run

Outcome = Literal["passed", "failed", "not measured", "not applicable"]
STOPPING: tuple[Outcome, ...] = ("failed", "not measured")  # with these a run does not count


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The measurement for a gate."""

    value: float | None = None  # the worst; None: nothing was, or nothing had to be
    where: str = ""
    note: str = ""  # what the value leaves out; or why there is no value and nothing is missing
    missing: str = ""  # what should have been measured and was not
    key: str = ""  # the limit that counts; empty: the gate's only one
    limit: float | None = None  # what passes, if that is more than the limit itself
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One gate of a run.

    Attributes:
        name: in words, with the unit.
        key: the key of `limits` that sets the limit, by which the gate can be waived.
        value: the worst that was measured; None: nothing was, or nothing had to be.
        limit: the largest value that passes.
        outcome: `passed`, `failed`, `not measured` or `not applicable`. A run counts only if no
            gate that decides failed or was not measured.
        where: the link, path, process or impairment that it is about.
        note: why there is no value, or what the value leaves out.
        waived: how the experiment loosened the gate; empty: it did not.
        decides: whether the run counts only if this gate allows it; false where `limits.waive`
            names it.
        repeats: whether another attempt would find the same, since the gate judges what the
            experiment says and not the machine.
    """

    name: str
    key: str
    value: float | None
    limit: float
    outcome: Outcome
    where: str = ""
    note: str = ""
    waived: str = ""
    decides: bool = True
    repeats: bool = False

    @property
    def stops(self) -> bool:
        return self.outcome in STOPPING and self.decides

    def sentence(self) -> str:
        """Say why it stops the run, for the reason of the run's status."""
        if self.value is None:
            return f"{self.key}: {self.name} {self.outcome}: {self.note}"
        place = f" ({self.where})" if self.where else ""
        return f"{self.key}: {self.name} {self.value:.4g}{place} exceeds {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(config: Mapping[str, Any], *, only: str = "", **evidence: object) -> list[Gate]:
    """Compare a run with the limits of its experiment, by all gates or one."""
    # `evidence` has what `RunObserver.judge` has collected, by the names of the judges' arguments.
    # Keys that are younger than the run's key are written only where they are not the default.
    limits = DEFAULTS | config["limits"]
    evidence |= {"config": config, "limits": limits}
    gates = []
    for entry in GATES:
        if not only or only in entry.limits:
            judge_of = pkgutil.resolve_name(f"{__package__}.{entry.judge}")
            arguments = {name: evidence[name] for name in inspect.signature(judge_of).parameters}
            gates.append(_compared(entry, judge_of(**arguments), limits))
    return gates


def of_calibration(config: Mapping[str, Any], calibration: object) -> list[Gate]:
    """The gates that need nothing but the calibration."""
    keys = ("rate_error", "rate_spread", "rtt_error", "idle_loss", "queue_error")
    return [judge(config, only=key, calibration=calibration)[0] for key in keys]


def _compared(entry: GateEntry, finding: Finding, limits: Mapping[str, Any]) -> Gate:
    # Beside something missing, a value within the limit does not pass, since what is missing may be
    # worse; one beyond the limit fails all the same.
    key = finding.key or next(iter(entry.limits))
    limit = limits[key] if finding.limit is None else finding.limit
    value, note, missing = finding.value, finding.note, finding.missing
    place = f" ({finding.where})" if finding.where else ""
    outcome: Outcome = "passed"
    if value is not None and not math.isfinite(value):
        missing = "; ".join(filter(None, (f"the value{place} is {value}", missing)))
        value = None
    elif value is not None and value > limit:
        outcome, note, missing = "failed", "; ".join(filter(None, (note, missing))), ""
    elif value is not None and missing:
        missing += f"; the worst of the others was {value:.4g}{place}"
    if missing:
        outcome, value, note = "not measured", None, missing
    elif value is None:
        outcome = "not applicable"
    # A looser limit decides, but is told.
    waived = [key for key in entry.limits if key in limits["waive"]]
    loose = [
        f"{key}, by a limit of {limits[key]:g} instead of {DEFAULTS[key]:g}"
        for key in entry.limits
        if limits[key] > DEFAULTS[key]
    ]
    return Gate(
        name=entry.name,
        key=key,
        value=value,
        limit=limit,
        outcome=outcome,
        where=finding.where,
        note=note,
        waived="; ".join([*(f"{key}, by limits.waive" for key in waived), *loose]),
        decides=not waived,
        repeats=finding.repeats,
    )


def reasons(gates: Sequence[Gate]) -> str:
    return "; ".join(gate.sentence() for gate in gates if gate.stops)


def worst(values: Iterable[tuple[float, str]]) -> tuple[float, str]:
    """The largest value and where it was. What is not a number is worst: it must not hide."""
    return max(values, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
