"""GPT-2 from transformers: Radford et al., Language Models are Unsupervised Multitask Learners."""

from torch import Tensor, nn

from testbed.training.models import transformers_offline  # noqa: F401  # isort: skip
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel


class _GPT2(GPT2LMHeadModel):
    """The model, returning only its logits, for whole sequences."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = super().forward(input_ids=tokens, use_cache=False, return_dict=True).logits
        return logits


def small(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """The smallest published GPT-2: 12 layers, 12 heads, 768 wide; 124.4 M weights."""
    return _build(classes, input_shape, layers=12, heads=12, width=768, dropout=0.1)


def tiny(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """4 layers, 4 heads, 64 wide, no dropout: 210,368 weights for 97 tokens, 64 at a time."""
    return _build(classes, input_shape, layers=4, heads=4, width=64, dropout=0.0)


def _build(
    classes: int,
    input_shape: tuple[int, ...],
    *,
    layers: int,
    heads: int,
    width: int,
    dropout: float,
) -> nn.Module:
    (length,) = input_shape
    config = GPT2Config(
        vocab_size=classes,
        n_positions=length,
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"  # plain operations: the same bits in every process
    return _GPT2(config).train()
