"""The prompt of `./lab shell`: Mininet's, with commands for what this lab adds."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mininet.cli import CLI
from rich.console import Console
from rich.table import Table

from controllers.controller_socket import ControllerClient, ControllerError
from testbed.lab.kernel.commands import CommandError
from testbed.run import manual_link_changes
from testbed.run.assembly import Lab
from testbed.run.manual_impairments import ManualImpairment
from testbed.shared.input_error import InputError

_WELCOME = """\
Mininet's prompt in the network of {experiment}: {hosts}. Nothing trains here.
  worker-1 ping server        run a command on a host; names of hosts become addresses
  lab                         hosts and links, as they are now
  set worker-1--s1 rate 20Mbit   change a link: its rate, delay, jitter, loss or queue
  impair NAME on|off          begin or end an impairment: {names}
  status                      what is in force, and whether the lab's programs run
  help, exit (or Ctrl-D)"""

_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "Mbit/s": lambda now: f"{now['rate_bps'] / 1e6:g}",
    "queue (bytes)": lambda now: str(now["queue_bytes"]),
    "delay (ms)": lambda now: f"{now['delay_s'] * 1e3:g}",
    "jitter (ms)": lambda now: f"{now['jitter_s'] * 1e3:g}",
    "loss": lambda now: f"{now['loss']:g}",
}


class Prompt(CLI):
    """The prompt. Its construction opens it and returns when the user leaves.

    Names of hosts with a hyphen are commands, as in `worker-1 ping server`.
    """

    identchars = CLI.identchars + "-"
    prompt = "lab> "

    def __init__(
        self, lab: Lab, impairments: dict[str, ManualImpairment], config: dict[str, Any]
    ) -> None:
        self._lab = lab
        self._impairments = impairments
        self._config = config
        self._log = Path(lab.impairment_log)
        self._console = Console(highlight=False, soft_wrap=True)
        hosts = ", ".join(host.name for host in lab.network.mininet.hosts)
        names = ", ".join(impairments) or "this experiment has none"
        welcome = _WELCOME.format(experiment=config["experiment"], hosts=hosts, names=names)
        self._console.print(welcome, markup=False)
        super().__init__(lab.network.mininet, stdin=sys.stdin)

    def default(self, line: str) -> None:
        """Run a command on a host. In a script it has nothing to read: the input is the script."""
        host, command, _ = self.parseline(line)
        if command and host in self.mn and not self.isatty():
            command = command.rstrip("; ")
            end = "" if command.endswith("&") else " ;"
            line = f"{host} {{ {command}{end} }} < /dev/null"
        super().default(line)

    def waitForNode(self, node: Any) -> None:  # noqa: N802 (Mininet's name)
        """Print what a host's command prints until it ends.

        Mininet hands what is typed meanwhile to the command. Of a script, that is the next lines.
        """
        if self.isatty():
            super().waitForNode(node)
            return
        while node.waiting:
            print(node.monitor(), end="", flush=True)

    def do_lab(self, _line: str) -> None:
        """Hosts and links of this lab: `lab`."""
        info = self._lab.network.info
        table = Table("host", "address", "switch", "interface", box=None)
        for host in info.hosts.values():
            table.add_row(host.name, host.address, host.switch, host.interface)
        self._console.print(table, "")
        table = Table(box=None)
        for title in ("link", "toward", *_COLUMNS):
            table.add_column(title, no_wrap=True, overflow="ignore")  # a cut name is none
        try:
            client = self._client()
            for link in info.links:
                for sender, receiver in ((link.first, link.second), (link.second, link.first)):
                    now = manual_link_changes.made(client, (sender.node, receiver.node), {})["now"]
                    cells = [show(now) for show in _COLUMNS.values()]
                    table.add_row(link.name, receiver.node, *cells)
            client.close()
        except OSError as error:
            self._say(str(error))
            return
        self._console.print(table)

    def do_set(self, line: str) -> None:
        """Change a link while it works: `set LINK rate|delay|jitter|loss|queue VALUE [NODE]`.

        LINK is a name that `lab` shows. With NODE, only the direction toward it changes.
        Examples: `set worker-1--s1 rate 20Mbit`, `set worker-1--s1 queue 30kB worker-1`.
        """
        links = {
            each.name: (each.first.node, each.second.node) for each in self._lab.network.info.links
        }
        words = line.split()
        if not 3 <= len(words) <= 4:
            self._say(f"set LINK {'|'.join(manual_link_changes.WORDS)} VALUE [NODE]; see: lab")
            return
        name, word, value = words[:3]
        try:
            ends = manual_link_changes.one(name, links, "link")
            key = manual_link_changes.one(word, manual_link_changes.WORDS, "set")
            changes = manual_link_changes.checked({key: value})
            client = self._client()
            for way in manual_link_changes.ways(ends, words[3] if len(words) == 4 else None):
                now = manual_link_changes.made(client, way, changes)["now"]
                shown = ", ".join(f"{title} {show(now)}" for title, show in _COLUMNS.items())
                self._say(f"{name} toward {way[1]}: {shown}")
            client.close()
        except (InputError, CommandError, OSError) as error:
            self._say(f"set: {error}")

    def complete_set(self, text: str, line: str, *_: int) -> list[str]:
        """Names of links, then what of them can be set, for the tabulator key."""
        names = [each.name for each in self._lab.network.info.links]
        words = manual_link_changes.WORDS if line[: -len(text) or None].count(" ") > 1 else names
        return [each for each in words if each.startswith(text)]

    def do_impair(self, line: str) -> None:
        """Begin or end an impairment of the experiment: `impair NAME on|off`."""
        name, _, action = line.strip().partition(" ")
        impairment = self._impairments.get(name)
        if impairment is None or action not in ("on", "off"):
            valid = ", ".join(self._impairments) or "none in this experiment"
            self._say(f"impair NAME on|off; valid names: {valid}")
            return
        if action == "off" and impairment.ends_by_itself:
            self._say(f"{name} ends by itself; {self._effect(name)}")
            return
        number = impairment.round_number
        try:
            client = self._client()
            active = client.begin(number, "round") if action == "on" else None
            if active is None:
                client.end(number, "round")
            client.close()
        except OSError as error:
            self._say(f"{name}: {error}")
            return
        if active is None:
            self._say(f"{name} is off: {self._effect(name)}")
        elif impairment.ends_by_itself:
            self._say(f"{name} has begun; it ends by itself (then: status)")
        elif name in active:
            self._say(f"{name} is on (in force: {', '.join(active)})")
        else:
            self._say(f"{name} did not begin")

    def do_status(self, _line: str) -> None:
        """What is in force, and whether the lab's programs run: `status`."""
        for name, status in self._lab.processes.statuses().items():
            self._say(f"{name}: {'runs' if status is None else f'ended with status {status}'}")
        try:
            client = self._client()
            active = client.active()
            client.close()
        except OSError as error:
            self._say(str(error))
            return
        for name, impairment in self._impairments.items():
            words = "in force" if name in active else f"off; {self._effect(name)}"
            self._say(f"impairment {name} ({impairment.kind}): {words}")

    def complete_impair(self, text: str, line: str, *_: int) -> list[str]:
        """Names, then on and off, for the tabulator key."""
        words = ("on", "off") if line[: -len(text) or None].count(" ") > 1 else self._impairments
        return [each for each in words if each.startswith(text)]

    def _client(self) -> ControllerClient:
        try:
            return ControllerClient(self._lab.controller_socket)
        except ControllerError:
            raise ConnectionError("the controller does not answer") from None

    def _effect(self, name: str) -> str:
        """Say what an impairment did the last time that it was in force."""
        records = [json.loads(line) for line in self._log.read_text().splitlines()]
        ended = [each for each in records if each["name"] == name and each["action"] == "end"]
        if not ended:
            return "was not in force yet"
        last = ended[-1]
        facts = {key: last.get(key) for key in ("met", "dropped", "frames_sent")} | last.get(
            "details", {}
        )
        told = [f"{key} {value}" for key, value in facts.items() if value is not None]
        return f"its last time: {', '.join(told)}" if told else "it was in force"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)
