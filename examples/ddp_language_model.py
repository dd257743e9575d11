"""A small GPT that learns Python, over bounded-loss transfers, with DistributedDataParallel.

    torchrun --nproc_per_node 2 examples/ddp_language_model.py
    torchrun --nproc_per_node 2 examples/ddp_language_model.py --protocol gloo  # all-reduce

It needs `pip install '.[ddp]'` and no data: it reads the sources of Python's standard library, one
character after the other, and prints how well it foretells files that it has not read (perplexity:
128 at first, 1 would be perfect). Nothing of the lab is used; `ddp_train.py` beside it has what the
examples share.
"""

import argparse
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_train import common_options, device, exchange, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHARACTERS = 128  # ASCII; the last one stands for all others
TEST_WINDOWS = 64


def read(*, test: bool) -> torch.Tensor:
    """The sources as one text of character numbers; every tenth file is for the test."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [each.read_bytes() for at, each in enumerate(files) if (at % 10 == 9) == test]
    text = torch.frombuffer(bytearray(b"\n".join(parts)), dtype=torch.uint8)
    return text.clamp(max=CHARACTERS - 1).long()


class Gpt(nn.Module):
    """From texts of shape (batch, places) the next characters' logits, (batch, places, 128)."""

    def __init__(self, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(places, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
        )
        last = nn.LayerNorm(width)
        self.layers = nn.TransformerEncoder(layer, layers, last, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS)
        mask = nn.Transformer.generate_square_subsequent_mask(places)  # sees what came before alone
        self.register_buffer("mask", mask)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        values = self.characters(text) + self.places(places)
        logits: torch.Tensor = self.head(self.layers(values, self.mask, is_causal=True))
        return logits


def arguments() -> argparse.Namespace:
    parser = common_options(__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps from one test to the next")
    parser.add_argument("--batch", type=int, default=16, help="texts of a step, on each rank")
    parser.add_argument("--places", type=int, default=64, help="characters of a text")
    for name, default in (("width", 96), ("heads", 4), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def loss_of(net: nn.Module, texts: torch.Tensor) -> torch.Tensor:
    """Of texts that are longer by the character that is to be foretold last."""
    return nn.functional.cross_entropy(net(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())


def train(given: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Gpt(given.places, given.width, given.heads, given.layers).to(device())
    ddp = DistributedDataParallel(net)
    optimiser = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    if state := exchange(given):
        ddp.register_comm_hook(state, state.hook)

    windows = read(test=False).unfold(0, given.places + 1, 1)
    tests = read(test=True).unfold(0, given.places + 1, 1)
    tests = tests[torch.linspace(0, len(tests) - 1, TEST_WINDOWS).long()].to(device())
    draws, began_s = torch.Generator().manual_seed(rank), time.monotonic()
    for step in range(1, given.steps + 1):
        chosen = torch.randint(len(windows), (given.batch,), generator=draws)
        optimiser.zero_grad()
        loss_of(ddp, windows[chosen].to(device())).backward()
        optimiser.step()
        if rank == 0 and step % given.every == 0:
            with torch.no_grad():
                perplexity = loss_of(net, tests).exp().item()
            said = f"step {step}: perplexity {perplexity:.2f}, {time.monotonic() - began_s:.1f} s"
            if state is not None and state.last is not None:
                said += f", {state.last.bytes_sent} bytes sent"
                said += f", loss {max(each.loss for each in state.last.buckets):.1%} at most"
            print(said, flush=True)


if __name__ == "__main__":
    given = arguments()
    sys.exit(run(lambda: train(given)))
