"""Who cost each round: its critical path, from what server and workers logged of it.

A round's steps follow each other, and each waits for the slowest: all compute, all gradients are
gathered, the server averages, all receive the mean, all update. So the path goes through one worker
in each step, and its parts add up to the round. A leg's time is split once more:

    repair    sending again: the share of the last transfer's bytes that were sent before
    transfer  the rest, but no more than such a leg takes in the run's calm rounds, in the median
    delay     what remains: queues, a lower rate, time-outs, an end of the leg that had to wait

So half of the calm rounds have a little delay by definition. A leg that has no calm round of its
own tolerance is compared with all calm rounds of its run; without any, nothing of it is a delay.
"""

from __future__ import annotations

import polars as pl

from analysis.data.frame_columns import FRAMES
from analysis.data.metrics import LEGS

_KEYS = ("run_key", "round")
COLUMNS = FRAMES["critical_path"].columns
# The parts of a round in their order, and what each is. Legs have one such part each.
PARTS = {
    each.name: each.meaning
    for each in COLUMNS
    if each.name.endswith("_s") and each.name != "iteration_s"
}
STEPS = ("compute", *LEGS)  # those that one worker ends
_SPANS = {
    "compute": ("began_s", "gather_began_s"),
    "gather": ("gather_began_s", "gather_ended_s"),
    "broadcast": ("broadcast_began_s", "broadcast_ended_s"),
}


def of_rounds(
    *,
    rounds: pl.DataFrame,
    transfers: pl.DataFrame,
    training: pl.DataFrame,
    impairments: pl.DataFrame,
) -> pl.DataFrame:
    """A row for each round whose steps were logged: `run_key`, then `COLUMNS`."""
    times = ("gather_began_s", "gather_ended_s", "broadcast_began_s", "broadcast_s", "ended_s")
    path = rounds.drop_nulls(["began_s", *times]).select(
        *("run_key", "round", "iteration_s", "began_s", *times, "gather_s", "impairments"),
        *(f"tolerance_{leg}" for leg in LEGS),
        calm=pl.col("impairments").list.len() == 0,
        broadcast_ended_s=pl.col("broadcast_began_s") + pl.col("broadcast_s"),
    )
    path = path.join(_computing(training), on=_KEYS, how="inner", maintain_order="left")
    for leg in LEGS:
        path = path.join(_last(transfers, leg), on=_KEYS, how="inner", maintain_order="left")
        path = _split(path, leg)
    path = path.with_columns(
        mean_s=pl.col("broadcast_began_s") - pl.col("gather_ended_s"),
        update_s=pl.col("ended_s") - pl.col("broadcast_ended_s"),
    )
    others = [name for name in PARTS if name != "barrier_s"]
    path = path.with_columns(barrier_s=pl.col("iteration_s") - pl.sum_horizontal(others))
    met = _met(path, impairments, training)
    for step, span in _SPANS.items():
        path = path.join(_of_step(met, step, *span), on=_KEYS, how="left", maintain_order="left")
    lists = [f"{step}_impairments" for step in STEPS]
    path = path.with_columns(pl.col(lists).fill_null(pl.lit([], pl.List(pl.String))))
    return path.select("run_key", *(each.name for each in COLUMNS))


def _computing(training: pl.DataFrame) -> pl.DataFrame:
    """Per round who computed longest, and how long within its pace and beyond it."""
    overrun_s = pl.min_horizontal(pl.col("compute_overrun_s").fill_null(0.0), "compute_s")
    return (
        training.drop_nulls("compute_s")
        .sort("compute_s", "host")
        .group_by(_KEYS)
        .agg(
            pl.col("host").last().alias("compute_worker"),
            pl.col("compute_s").last(),
            overrun_s.last().alias("overrun_s"),
        )
        .with_columns(pl.col("compute_s") - pl.col("overrun_s"))
    )


def _last(transfers: pl.DataFrame, leg: str) -> pl.DataFrame:
    """Per round the worker of the leg's last transfer, and what share of it was repetition."""
    on_leg = transfers.filter(pl.col("leg") == leg)
    worker = {"receiver": "peer", "sender": "host"}
    if leg == "broadcast":
        worker = {"receiver": "host", "sender": "peer"}
    last = (
        on_leg.filter(pl.col("role") == "receiver")
        .drop_nulls("ended_s")
        .sort("ended_s", worker["receiver"])
        .group_by(_KEYS)
        .agg(pl.col(worker["receiver"]).last().alias(f"{leg}_worker"))
    )
    share = pl.col("retransmitted_bytes") / pl.col("bytes_sent")
    sent = on_leg.filter(pl.col("role") == "sender", pl.col("bytes_sent") > 0).select(
        *_KEYS,
        pl.col(worker["sender"]).alias(f"{leg}_worker"),
        share.fill_null(0.0).clip(0.0, 1.0).alias(f"{leg}_repeated"),
    )
    return last.join(
        sent.unique([*_KEYS, f"{leg}_worker"], keep="last"),
        on=[*_KEYS, f"{leg}_worker"],
        how="left",
    )


def _split(path: pl.DataFrame, leg: str) -> pl.DataFrame:
    """The leg's time in parts: repair by bytes, and beyond calm rounds a delay."""
    repair = pl.col(f"{leg}_s") * pl.col(f"{leg}_repeated").fill_null(0.0)
    path = path.with_columns(repair.alias(f"{leg}_repair_s"))
    rest = pl.col(f"{leg}_s") - pl.col(f"{leg}_repair_s")
    calm = rest.filter(pl.col("calm")).median()
    alike = calm.over("run_key", pl.col(f"tolerance_{leg}"))
    usual = pl.coalesce(alike, calm.over("run_key"), rest)
    path = path.with_columns(pl.min_horizontal(rest, usual).alias(f"{leg}_transfer_s"))
    return path.with_columns((rest - pl.col(f"{leg}_transfer_s")).alias(f"{leg}_delay_s"))


def _met(path: pl.DataFrame, impairments: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """The rows of `path` with each impairment in force in it; `hit` is null where it meets all."""
    on = ["run_key", "name", "number"]
    begun, ended = (
        impairments.filter(pl.col("action") == action)
        .sort("sent_s", maintain_order=True)
        .with_columns(pl.int_range(pl.len()).over("run_key", "name").alias("number"))
        for action in ("begin", "end")
    )
    ends = ended.select(
        *on,
        ends_s="acknowledged_s",
        computes=pl.col("details").str.json_path_match("$.resource") == "cpu",
    )
    spans = begun.join(ends, on=on, how="left").select(
        *on,
        *("sent_s", "ends_s"),
        pl.col("computes").fill_null(value=False),
        hit=pl.coalesce("target", "host").fill_null("").str.split("->"),
    )
    hosts = training.select("run_key", hit="host").unique()
    hit = spans.select(*on, "hit").explode("hit").join(hosts, on=["run_key", "hit"], how="semi")
    spans = spans.drop("hit").join(hit.group_by(on).agg("hit"), on=on, how="left")
    return path.explode("impairments").join(
        spans, left_on=["run_key", "impairments"], right_on=["run_key", "name"], how="inner"
    )


def _of_step(met: pl.DataFrame, step: str, begin: str, end: str) -> pl.DataFrame:
    """Per round the impairments that the step's worker met while it lasted, as a list of names."""
    is_own = pl.col("hit").list.contains(pl.col(f"{step}_worker"))
    concerns = is_own & pl.col("computes")
    if step != "compute":  # who waits for a slow process in a leg may wait for its datagrams
        concerns = is_own | pl.col("hit").is_null()
    lasts = (pl.col("sent_s") < pl.col(end)) & (
        pl.col("ends_s").is_null() | (pl.col("ends_s") > pl.col(begin))
    )
    return (
        met.filter(concerns.fill_null(value=False) & lasts)
        .group_by(_KEYS)
        .agg(pl.col("impairments").unique().sort().alias(f"{step}_impairments"))
    )
