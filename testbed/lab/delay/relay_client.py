"""Starts the relay process, lets any process of the lab talk to it, and writes `delay.json`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.lab.delay import netem
from testbed.lab.delay.delay_settings import Middle
from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.lab.kernel.commands import CommandError
from testbed.shared import messages, python_module
from testbed.shared.messages import MessageError
from testbed.shared.run_directory import open_file

_ANSWER_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 60.0  # it imports numpy, which takes long on an emulated processor
_END_TIMEOUT_S = 5.0
_SCHEMA = 1


class RelayClient:
    """A connection to a running relay; cheap, and any number of processes may have one."""

    def __init__(self, path: Path | str) -> None:
        try:
            self._messages = messages.connect(path)
        except OSError as error:
            raise CommandError(f"the delay relay at {path} does not answer: {error}") from error

    def change(
        self,
        link: str,
        sender: str,
        *,
        on_record: bool = False,
        rate_bps: int | None = None,
        source: str | None = None,
        ring: socket.socket | None = None,
        **settings: float,
    ) -> float | None:
        """Change a direction; returns when it took effect, in seconds of the monotonic clock."""
        # `on_record`: the experiment wants it, as of an impairment: the mean waits of the direction
        # leave its frames out, until the delay is as it was at first.
        change: dict[str, Any] = {
            "do": "change",
            "link": link,
            "from": sender,
            "on_record": on_record,
            "rate_bps": rate_bps,
        }
        if source is not None:
            change["source"] = source
        changed_s: float | None = self._ask(change | settings, ring)["changed_s"]
        return changed_s

    def forget(self, link: str, sender: str) -> None:
        """Let the relay drop a direction that was idle: its frames do not come, after all."""
        self._ask({"do": "forget", "link": link, "from": sender})

    def begin(self) -> None:
        """Forget what was measured so far, apart from counters: the report is of what follows."""
        self._ask({"do": "begin"})

    def report(self) -> dict[str, Any]:
        """Return counters since the relay began, and all else in `delay.json` since `begin`."""
        return self._ask({"do": "report"})

    def close(self) -> None:
        self._messages.close()

    def _ask(self, request: dict[str, Any], ring: socket.socket | None = None) -> dict[str, Any]:
        files = [] if ring is None else [ring.fileno()]
        try:
            answer, _ = self._messages.ask(request, files, timeout_s=_ANSWER_TIMEOUT_S)
        except MessageError as error:
            raise CommandError(f"the delay relay does not answer: {error}") from error
        if "error" in answer:
            raise CommandError(f"delay relay: {answer['error']}")
        return answer


@dataclass(eq=False)
class Relay:
    """The relay process of a lab, which is started in the namespace of the inner interfaces."""

    middles: Sequence[Middle]
    path: Path
    log: Path | None = None
    seed: int | None = None

    def start(self) -> Relay:
        argv = python_module.command("testbed.lab.delay.relay")
        with open_file(self.log, "ab") if self.log is not None else nullcontext() as stderr:
            self._helper = HelperProcess(argv, name="delay relay", stderr=stderr).start()
        self.process = self._helper.process
        with suppress(HelperError):  # `wait_until_ready` says that it has ended
            middles = [asdict(middle) for middle in self.middles]
            self._helper.send(middles=middles, socket=str(self.path), seed=self.seed)
        return self

    def wait_until_ready(self) -> None:
        try:
            answer = self._helper.receive(_START_TIMEOUT_S)
        except HelperError as error:
            raise CommandError(f"the delay relay did not begin: {error}") from None
        if "error" in answer:
            raise CommandError(f"the delay relay did not begin: {answer['error']}")

    def close(self) -> None:
        """End the relay, which cuts all its links."""
        self._helper.finish(_END_TIMEOUT_S)


@contextmanager
def recorded(network: Mapping[str, Any], path: Path) -> Iterator[None]:
    """Write the record of a lab's delayed links while the body ran; nothing if it has none."""
    if network["delayed_by"] == "relay":
        with closing(RelayClient(network["relay_socket"])) as client:
            client.begin()
    yield
    if network["delayed_by"] is not None:
        with open_file(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(document(network), indent=1) + "\n")


def document(network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record so far: what delays (`by`), whether frames stay `in_order`, the report."""
    common = {"schema": _SCHEMA, "by": network["delayed_by"], "in_order": network["in_order"]}
    common["at_s"] = time.monotonic()
    if network["delayed_by"] == "netem":
        middles = [Middle.of_link(link) for link in network["links"] if link["middle"] is not None]
        return common | netem.report(middles)
    with closing(RelayClient(network["relay_socket"])) as client:
        return common | client.report()
