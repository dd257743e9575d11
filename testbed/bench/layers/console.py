"""Profiles layers for a terminal: progress, a table of what each bears, the file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from analysis.tables import rendering
from testbed.bench import trainings
from testbed.bench.layers import ladder, rule, written
from testbed.bench.layers.ladder import Profile
from testbed.bench.layers.rule import Finding
from testbed.bench.layers.training import Trial, train
from testbed.experiment import Run
from testbed.run import manifest
from testbed.shared import run_directory, yaml_input
from testbed.shared.yaml_input import InputError

_COLUMNS = ("tensors", "elements", "bound", "difference at each share, and its lower end")
_NOTE = (
    "Paired over seeds {}, on the validation part. A share holds if the lower end of the one-sided "
    "95 % interval is not below -{:g}. At least: the ladder ended there, more was not tried."
)


def run(runs: Sequence[Run], *, margin: float, file: Path | None) -> None:
    """Train, print what each layer bears, write the file.

    Raises:
        InputError: nothing is learnt, there are too few seeds, or the file cannot be written.
    """
    base = ladder.task(runs)
    if len(base) < rule.FEWEST_SEEDS:
        raise InputError(f"--seeds {len(base)}: no spread is known; valid: at least 2")
    if file is not None:
        _refuse_unwritable(file)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    commit = manifest.commit()  # as it was when training began

    def on_all_processors(trials: Sequence[Trial]) -> list[trainings.Record]:
        return trainings.train(
            trials, train, json_file=None, console=console, order=lambda each: each["seed"]
        )

    profile = ladder.climb(base, on_all_processors, margin=margin)
    console.print(rendering.to_text(table(profile, margin=margin)))
    console.print(written.as_setting(profile))
    if file is None:
        return
    config = base[0].config
    facts = {
        "experiment": runs[0].experiment.name,
        "commit": commit,
        "model": config["training"]["model"],
        "rounds": config["rounds"],
        "workers": len(base[0].hosts) - 1,
        "chunk_bytes": config["transport"]["chunk_bytes"],
        "learning_rate": config["training"]["learning_rate"],
        "seeds": [each.seed for each in base],
        "evaluated_on": "validation",
        "margin": margin,
    }
    run_directory.write_text(file.resolve(), written.text(profile, facts))
    console.print(f"profile: {file}")


def _refuse_unwritable(file: Path) -> None:
    """Training takes long: what could not be written after it is refused before."""
    if not file.absolute().parent.is_dir():
        raise InputError(f"--out {file}: no such folder")
    if file.is_dir():
        raise InputError(f"--out {file}: is a folder; expected a file")
    if file.suffix not in yaml_input.SUFFIXES:  # an arm would take its name for bounds
        valid = " or ".join(yaml_input.SUFFIXES)
        raise InputError(f"--out {file}: valid: a name that ends in {valid}")
    try:
        # The file is replaced in the end, or a link's target.
        with tempfile.NamedTemporaryFile(dir=file.resolve().parent, prefix=".lab-"):
            pass
    except OSError as error:
        raise InputError(f"--out {file}: cannot be written: {error.strerror}") from None


def table(profile: Profile, *, margin: float) -> rendering.Table:
    """What each group of tensors bears, and all of them at once."""
    seeds = ", ".join(str(each["seed"]) for each in profile.without)
    return rendering.Table(
        title="What each layer bears",
        columns=list(_COLUMNS),
        rows=[rendering.row(*texts) for texts in _rows(profile)],
        notes=[_NOTE.format(seeds, margin)],
        numeric=False,
    )


def _rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    for group in profile.groups:
        name, climbed = group.name, profile.climbed[group.name]
        shown = f"{name} ({', '.join(group.tensors)})" if name not in group.tensors else name
        told = "; ".join(map(_told, climbed))
        yield shown, str(profile.elements[name]), _bound(rule.bound(climbed)), told
    if profile.together is not None:
        total = str(sum(profile.elements.values()))
        holds = "holds" if profile.together.holds else "does not hold: choose lower bounds"
        yield "all at their bounds", total, holds, _told(profile.together)


def _bound(share: float) -> str:
    return f"at least {share:g}" if rule.is_ladder_end(share) else f"{share:g}"


def _told(found: Finding) -> str:
    if not found.lost:
        return f"{found.share:.3g}: less than a chunk"
    if found.mean is None or found.low is None:
        return f"{found.share:.3g}: diverges"
    return f"{found.share:.3g}: {found.mean:+.4f} ({found.low:+.4f})"
