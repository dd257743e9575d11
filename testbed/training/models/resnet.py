"""ResNet-50 from transformers: He et al., Deep Residual Learning, CVPR 2016."""

from torch import Tensor, nn

from testbed.training.models import transformers_offline  # noqa: F401  # isort: skip
from transformers.models.resnet.configuration_resnet import ResNetConfig
from transformers.models.resnet.modeling_resnet import ResNetForImageClassification

_SMALL_BELOW = 64  # pixels


class _ResNet(ResNetForImageClassification):
    """The model, returning only its logits."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(pixel_values=images, return_dict=True).logits
        return logits


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Bottleneck blocks (3, 4, 6, 3); 25.56 M weights at 1000 classes.

    Images below 64 pixels get a 3 x 3 first convolution without stride or pooling.
    """
    channels, height, width = input_shape
    config = ResNetConfig(num_channels=channels)
    config.num_labels = classes
    model = _ResNet(config)
    if min(height, width) < _SMALL_BELOW:
        stem = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        model.resnet.embedder.embedder.convolution = stem
        model.resnet.embedder.pooler = nn.Identity()  # type: ignore[assignment]
    return model.train()
