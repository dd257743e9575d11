"""EfficientNet-B0 from transformers: Tan and Le, ICML 2019."""

from torch import Tensor, nn

from testbed.training.models import transformers_offline  # noqa: F401  # isort: skip
from transformers.models.efficientnet.configuration_efficientnet import EfficientNetConfig
from transformers.models.efficientnet.modeling_efficientnet import (
    EfficientNetForImageClassification,
)

_SMALL_BELOW = 64  # pixels
_STATISTICS_MOMENTUM = 0.1  # share of the newest batch; the package's 0.99 keeps one batch alone


class _EfficientNet(EfficientNetForImageClassification):
    """The model, returning only its logits."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(pixel_values=images, return_dict=True).logits
        return logits


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Sixteen inverted residual blocks; 5.29 M weights at 1000 classes.

    Images below 64 pixels get a first convolution without stride.
    """
    channels, height, width = input_shape
    config = EfficientNetConfig(
        num_channels=channels,
        image_size=min(height, width),
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        dropout_rate=0.2,
        batch_norm_momentum=_STATISTICS_MOMENTUM,
    )
    config.num_labels = classes
    model = _EfficientNet(config)
    if min(height, width) < _SMALL_BELOW:
        embeddings = model.efficientnet.embeddings
        embeddings.padding = nn.Identity()  # type: ignore[assignment]
        embeddings.convolution.stride = (1, 1)
        embeddings.convolution.padding = (1, 1)
    return model.train()
