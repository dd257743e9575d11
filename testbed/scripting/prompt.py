"""The prompt of `./lab shell`: Mininet's, with commands for what this lab adds."""

import sys
from collections.abc import Callable, Iterable

from mininet.cli import CLI
from rich.console import Console
from rich.table import Table

from controllers.controller_socket import ControllerClient
from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import LinkEnds
from testbed.run.session import LabSession
from testbed.scripting import by_hand
from testbed.shared.input_error import InputError
from testbed.shared.registry import did_you_mean, one_of

_WELCOME = """\
Mininet's prompt in the network of {experiment}: {hosts}. Nothing trains here.
  worker-1 ping server        run a command on a host; names of hosts become addresses
  dump, links                 hosts and links
  set {link} rate 20Mbit
                              change a link: its rate, delay, jitter, loss or queue
  set                         what links are set to now
  impair NAME on|off          begin or end an impairment: {names}
  status                      what is in force, and whether the lab's programs run
  help, exit (or Ctrl-D)"""

# How each setting of a link is shown, which is also a way to type it.
_SHOWN: dict[str, Callable[[float], str]] = {
    "rate": lambda bps: f"{bps / 1e6:.9g}Mbit",
    "delay": lambda s: f"{s * 1e3:.9g}ms",
    "jitter": lambda s: f"{s * 1e3:.9g}ms",
    "loss": lambda share: f"{share:.9g}",
    "queue": lambda size_bytes: f"{size_bytes / 1e3:.9g}kB",
}


class Prompt(CLI):
    """Mininet's prompt, with `set`, `impair` and `status`."""

    identchars = CLI.identchars + "-"
    prompt = "lab> "

    def __init__(self, lab: LabSession) -> None:
        self._lab = lab
        self._impairments = by_hand.take_over_impairments(lab.config)
        self._console = Console(highlight=False, soft_wrap=True)

    def open(self) -> None:
        """Build the lab, and carry out commands until the user leaves."""
        lab = self._lab
        lab.build()
        lab.warm_up()
        self._controller = ControllerClient(lab.controller_socket)
        welcome = _WELCOME.format(
            experiment=lab.config["experiment"],
            hosts=", ".join(host.name for host in lab.network.mininet.hosts),
            names=", ".join(self._impairments) or "this experiment has none",
            link=lab.info.links[0].name,
        )
        self._say(welcome)
        super().__init__(lab.network.mininet, stdin=sys.stdin)

    def onecmd(self, line: str) -> bool:
        """Carry out a line; an error is one line, which begins with the command."""
        try:
            return bool(super().onecmd(line))
        except (InputError, OSError, CommandError) as error:
            words = str(error)
            for word, key in by_hand.WORDS.items():  # a topology's keys are the prompt's words
                words = words.replace(key, word)
            self._say(f"{line.split()[0]}: {words}")
            return False

    def do_set(self, line: str) -> None:
        """Change a link while it works: `set LINK rate|delay|jitter|loss|queue VALUE [NODE]`.

        `set` and `set LINK` show what is set. With NODE, only the direction toward it changes.
        Examples: `set worker-1--s1 rate 20Mbit`, `set worker-1--s1 queue 30kB worker-1`.
        """
        links = {link.name: link for link in self._lab.info.links}
        either_way = links | {
            f"{link.second.node}--{link.first.node}": link for link in links.values()
        }
        name, *words = line.split() or [""]
        if name and name not in either_way:
            raise InputError(f"no link {name!r}{did_you_mean(name, links)}; see: set")
        if words:
            self._set(either_way[name], words[0], words[1:])
        else:
            self._show_links([either_way[name]] if name else links.values())

    def _set(self, link: LinkEnds, word: str, rest: list[str]) -> None:
        ends = (link.first.node, link.second.node)
        if word not in _SHOWN:
            raise InputError(f"{word!r}: {one_of(word, _SHOWN)}")
        if not rest:
            raise InputError(f"{word}: to which value? see: help set")
        changes = by_hand.checked({by_hand.WORDS[word]: rest[0]})
        for way in by_hand.ways(ends, " ".join(rest[1:]) or None):
            by_hand.change(self._controller, way, changes)
        self._show_links([link])

    def _show_links(self, links: Iterable[LinkEnds]) -> None:
        table = Table(box=None)
        for title in ("link", "toward", *_SHOWN):
            table.add_column(title, no_wrap=True, overflow="ignore")  # a cut name is none
        for link in links:
            for way in by_hand.ways((link.first.node, link.second.node), None):
                now = by_hand.change(self._controller, way, {})["now"]
                cells = [show(now[by_hand.WORDS[word]]) for word, show in _SHOWN.items()]
                table.add_row(link.name, way[1], *cells)
        self._console.print(table)

    def do_impair(self, line: str) -> None:
        """Begin or end an impairment of the experiment: `impair NAME on|off`."""
        name, _, action = line.strip().partition(" ")
        impairment = self._impairments.get(name)
        if impairment is None:
            valid = ", ".join(self._impairments) or "none in this experiment"
            wrong = f"no impairment {name!r}" if name else "which one, and on or off?"
            raise InputError(f"{wrong}; valid names: {valid}")
        if action not in ("on", "off"):
            raise InputError(f"{name}: {action or 'on or off?'}; valid: on, off")
        number, by_itself = impairment.round_number, impairment.ends_by_itself
        if action == "on":
            active = self._controller.begin(number, "round")
            if by_itself:
                self._say(f"{name} has begun; it ends by itself (then: status)")
            elif name in active:
                self._say(f"{name} is on (in force: {', '.join(active)})")
            else:
                self._say(f"{name} did not begin")
        elif by_itself:
            self._say(f"{name} ends by itself; {self._effect(name)}")
        else:
            self._controller.end(number, "round")
            self._say(f"{name} is off: {self._effect(name)}")

    def do_status(self, _line: str) -> None:
        """Show what is in force, and whether the lab's programs run: `status`."""
        for name, status in self._lab.processes.statuses().items():
            self._say(f"{name}: {'runs' if status is None else f'ended with status {status}'}")
        active = self._controller.wait_ready()
        for name, impairment in self._impairments.items():
            words = "in force" if name in active else f"off; {self._effect(name)}"
            self._say(f"impairment {name} ({impairment.document['kind']}): {words}")

    def _effect(self, name: str) -> str:
        """Say what an impairment did the last time that it was in force."""
        ended = by_hand.effects(self._lab.impairment_log, name)
        if not ended:
            return "was not in force yet"
        counts = [f"{key} {value}" for key, value in ended[-1].items() if value is not None]
        return f"its last time: {', '.join(counts)}" if counts else "it was in force"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)
