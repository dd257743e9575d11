"""Reads counters and watches the processor while a run trains, then judges the run by its gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import LabInfo
from testbed.lab.openvswitch import SocketBuffers
from testbed.shared import jsonl, run_directory
from testbed.verdict import conservation, gates, link_changes, links_under_load
from testbed.verdict.calibration import Calibration
from testbed.verdict.conservation import Conservation
from testbed.verdict.counters import CounterReader, Counters
from testbed.verdict.gates import Gate
from testbed.verdict.link_settings import SettingsReader
from testbed.verdict.processor_headroom import Standstill, StandstillWatch, Watch

_SWITCH_DAEMON = "ovs-vswitchd"
_EMULATOR = (_SWITCH_DAEMON, "controller", "delay-relay")


class RunObserver:
    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        network: LabInfo,
        processes: Mapping[str, int],
    ) -> None:
        self._directory = directory
        self._config = config
        self._network = network
        self._failure = ""
        self._reader: CounterReader | None = None
        self._before: Counters | None = None
        self._watch: Watch | None = None
        self._settings = SettingsReader(network)
        self._standstills: list[Standstill] = []
        self._own = {name: pid for name, pid in processes.items() if name in _EMULATOR}
        try:
            self._reader = CounterReader(network, processes[_SWITCH_DAEMON])
        except (OSError, CommandError) as error:
            self._failure = str(error)
        self._read()  # the first read takes half a second: better here than in `begin`

    def _read(self, longest_s: float = 0.0, *, last: bool = False) -> Counters | None:
        if self._reader is None:
            return None
        try:
            return self._reader.read(longest_s, last=last)
        except (OSError, CommandError) as error:
            self._failure = str(error)
            return None

    def begin(self) -> None:
        self._before = self._read()
        self._settings.listen()
        self._settings.compare("before")
        self._watch = Watch(self._own)

    @contextmanager
    def attended(self, sampler: int) -> Iterator[None]:
        watch = StandstillWatch({**self._own, "sampler": sampler})
        try:
            yield
        finally:
            self._standstills = watch.finish()

    def judge(self, calibrated: Calibration, buffers: SocketBuffers) -> list[Gate]:
        """Read everything again, store it in the run's directory, and compare with the limits."""
        assert self._watch is not None, "begin() comes first"
        headroom = self._watch.finish()
        changes = link_changes.LinkChanges.read(self._directory)
        self._settings.compare("after", changes)
        events = jsonl.read(self._directory / "events" / "impairments.jsonl")
        self._settings.judge_passing(events, changes)
        self._settings.store(self._directory)
        ledgers = self._ledgers(events, changes.longest_s, buffers)
        proof = {"schema": run_directory.SCHEMA, "headroom": asdict(headroom)}
        proof["standstills"] = [asdict(standstill) for standstill in self._standstills]
        proof |= ledgers.as_json() if ledgers is not None else {"failure": self._failure}
        run_directory.write_json(self._directory / "conservation.json", proof)
        load = links_under_load.measure(self._directory, events, changes)
        load.store(self._directory)
        return gates.judge(
            self._config,
            directory=self._directory,
            network=self._network,
            calibration=calibrated,
            ledgers=ledgers,
            headroom=headroom,
            events=events,
            load=load,
            settings=self._settings,
            changes=changes,
            switch_holds_bytes=buffers.queue_bytes,
            unreadable=self._failure,
            standstills=self._standstills,
            rounds=jsonl.read(self._directory / "events" / "rounds.jsonl"),
        )

    def _ledgers(
        self, events: Sequence[Mapping[str, Any]], longest_s: float, buffers: SocketBuffers
    ) -> Conservation | None:
        after = self._read(longest_s, last=True)
        if self._before is None or after is None:
            return None
        try:
            return conservation.close(
                self._network,
                self._before,
                after,
                events,
                whole_batches=buffers.whole_batches,
            )
        except (KeyError, ValueError) as error:  # an interface, its queue or an effect is missing
            self._failure = f"{type(error).__name__}: {error}"
            return None
