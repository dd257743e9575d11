"""Models of the package transformers, with random weights, which return only their logits.

These settings, made before the import, ensure that no part of the package contacts a server.
"""

import os
from typing import Any

from torch import Tensor, nn

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # no threads before a fork

import transformers  # noqa: E402  # isort: skip

_SMALL_BELOW = 64  # pixels
_STATISTICS_MOMENTUM = 0.1  # share of the newest batch; the package's 0.99 keeps one batch alone


def _logits_of(model: Any, argument: str, config: Any, **options: Any) -> nn.Module:
    """A model of this class whose `forward` takes the inputs alone and returns the logits."""

    class Logits(model):
        def forward(self, inputs: Tensor) -> Tensor:
            named = {argument: inputs, "return_dict": True, **options}
            logits: Tensor = super().forward(**named).logits
            return logits

    made: nn.Module = Logits(config).train()
    return made


def resnet(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Bottleneck blocks (3, 4, 6, 3); 25.56 M weights at 1000 classes. He et al., CVPR 2016.

    Images below 64 pixels get a 3 x 3 first convolution without stride or pooling.
    """
    channels, height, width = input_shape
    config = transformers.ResNetConfig(num_channels=channels)
    config.num_labels = classes
    model: Any = _logits_of(transformers.ResNetForImageClassification, "pixel_values", config)
    if min(height, width) < _SMALL_BELOW:
        stem = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        model.resnet.embedder.embedder.convolution = stem
        model.resnet.embedder.pooler = nn.Identity()
    return model


def resnet18(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Basic blocks (2, 2, 2, 2); 11.69 M weights at 1000 classes. He et al., CVPR 2016.

    Small images get the published first convolution and pooling, too: a sixteenth of the work.
    """
    config = transformers.ResNetConfig(
        num_channels=input_shape[0],
        layer_type="basic",
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
    )
    config.num_labels = classes
    return _logits_of(transformers.ResNetForImageClassification, "pixel_values", config)


def efficientnet(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Sixteen inverted residual blocks; 5.29 M weights at 1000 classes. Tan and Le, ICML 2019.

    Small images get the published first convolution, too, with its stride of two.
    """
    channels, height, width = input_shape
    config = transformers.EfficientNetConfig(
        num_channels=channels,
        image_size=min(height, width),
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        dropout_rate=0.2,
        batch_norm_momentum=_STATISTICS_MOMENTUM,
    )
    config.num_labels = classes
    model = _logits_of(transformers.EfficientNetForImageClassification, "pixel_values", config)
    # The package draws all weights with a deviation of 0.02, those of batch norms, too, so that the
    # signal vanishes from block to block and nothing is learnt.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return model


def gpt2_small(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """The smallest published GPT-2: 12 layers, 12 heads, 768 wide; 124.4 M weights."""
    return _gpt2(classes, input_shape, n_layer=12, n_head=12, n_embd=768, dropout=0.1)


def gpt2_tiny(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """4 layers, 4 heads, 64 wide, no dropout: 210,368 weights for 97 tokens, 64 at a time."""
    return _gpt2(classes, input_shape, n_layer=4, n_head=4, n_embd=64, dropout=0.0)


def gpt2_mini(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """4 layers, 4 heads, 128 wide, no dropout: 822,144 weights for 97 tokens, 128 at a time."""
    return _gpt2(classes, input_shape, n_layer=4, n_head=4, n_embd=128, dropout=0.0)


def _gpt2(classes: int, input_shape: tuple[int, ...], *, dropout: float, **size: Any) -> nn.Module:
    """Radford et al., Language Models are Unsupervised Multitask Learners, 2019."""
    (length,) = input_shape
    config = transformers.GPT2Config(
        vocab_size=classes,
        n_positions=length,
        **size,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"  # plain operations: the same bits in every process
    return _logits_of(transformers.GPT2LMHeadModel, "input_ids", config, use_cache=False)
