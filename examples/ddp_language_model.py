"""A small GPT that learns Python, over bounded-loss transfers, with DistributedDataParallel.

    torchrun --nproc_per_node 2 examples/ddp_language_model.py
    torchrun --nproc_per_node 2 examples/ddp_language_model.py --protocol gloo  # all-reduce

It needs `pip install '.[ddp]'` and no data: it reads the sources of Python's standard library, one
character after the other, and prints how well it foretells files that it has not read (perplexity:
128 at first, 1 would be perfect). Nothing of the lab is used.
"""

import argparse
import os
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss, InputError, PeerLost

CHARACTERS = 128  # ASCII; the last one stands for all others
TEST_WINDOWS = 64


def read(*, test: bool) -> torch.Tensor:
    """The sources as one text of character numbers; every tenth file is for the test."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [each.read_bytes() for at, each in enumerate(files) if (at % 10 == 9) == test]
    text = torch.frombuffer(bytearray(b"\n".join(parts)), dtype=torch.uint8)
    return text.clamp(max=CHARACTERS - 1).long()


class Block(nn.Module):
    """Attention to what came before, then a layer for each character by itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.alone = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        asked = self.asked(self.before(values)).unflatten(-1, (3, self.heads, -1))
        query, key, value = asked.transpose(1, 3).unbind(2)  # each (batch, head, place, width)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.joined(found.transpose(1, 2).flatten(2))
        return values + self.alone(self.behind(values))


class Gpt(nn.Module):
    """From texts of shape (batch, places) the next characters' logits, (batch, places, 128)."""

    def __init__(self, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(places, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        logits: torch.Tensor = self.head(
            self.last(self.blocks(self.characters(text) + self.places(places)))
        )
        return logits


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--protocol", default="dblp", help="a preset, or gloo for DDP's own")
    parser.add_argument("--collective", default="sharded", help="sharded or server")
    parser.add_argument("--mode", default="bounded", help="bounded, reliable or local")
    parser.add_argument("--rate-bps", type=float, help="what a rank's link carries")
    parser.add_argument("--interface", help="this rank's network interface")
    parser.add_argument("--insecure", action="store_true", help="no keys between machines")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps from one test to the next")
    parser.add_argument("--batch", type=int, default=16, help="texts of a step, on each rank")
    parser.add_argument("--places", type=int, default=64, help="characters of a text")
    for name, default in (("width", 96), ("heads", 4), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def loss_of(net: nn.Module, texts: torch.Tensor) -> torch.Tensor:
    """Of texts that are longer by the character that is to be foretold last."""
    return functional.cross_entropy(net(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())


def train(given: argparse.Namespace) -> None:
    rank, device = dist.get_rank(), torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.manual_seed(0)
    net = Gpt(given.places, given.width, given.heads, given.layers).to(device)
    ddp = DistributedDataParallel(net)
    optimiser = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    state = None
    if given.protocol != "gloo":
        state = BoundedLoss(
            given.protocol, collective=given.collective, mode=given.mode,
            rate_bps=given.rate_bps, interface=given.interface, insecure=given.insecure,
        )  # fmt: skip
        ddp.register_comm_hook(state, state.hook)

    windows = read(test=False).unfold(0, given.places + 1, 1)
    tests = read(test=True).unfold(0, given.places + 1, 1)
    tests = tests[torch.linspace(0, len(tests) - 1, TEST_WINDOWS).long()].to(device)
    draws, began_s = torch.Generator().manual_seed(rank), time.monotonic()
    for step in range(1, given.steps + 1):
        chosen = torch.randint(len(windows), (given.batch,), generator=draws)
        optimiser.zero_grad()
        loss_of(ddp, windows[chosen].to(device)).backward()
        optimiser.step()
        if rank == 0 and step % given.every == 0:
            with torch.no_grad():
                perplexity = loss_of(net, tests).exp().item()
            said = f"step {step}: perplexity {perplexity:.2f}, {time.monotonic() - began_s:.1f} s"
            if state is not None and state.last is not None:
                said += f", {state.last.bytes_sent} bytes sent"
                said += f", loss {max(each.loss for each in state.last.buckets):.1%} at most"
            print(said, flush=True)


def main() -> int:
    given = arguments()
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # for NCCL
    dist.init_process_group("nccl" if enough else "gloo")
    try:
        train(given)
    except (InputError, PeerLost) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
