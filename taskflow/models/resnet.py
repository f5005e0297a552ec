"""ResNet with bottleneck blocks: He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (arXiv 1512.03385); the
stride is in a block's 3 x 3 convolution, and layers are named as in torchvision."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.classifier import classify, image_inputs
from taskflow.operators.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Sizes of the network; the defaults are ResNet-101's. ``batch`` is of the whole machine, ``image`` the height and width of
    its images, ``blocks`` the number of blocks in each of the four stages, ``width`` the first stage's inner channels."""

    batch: int = 64
    image: int = 224
    classes: int = 1000
    blocks: tuple[int, int, int, int] = (3, 4, 23, 3)
    width: int = 64

    @staticmethod
    def small() -> ResNetConfig:
        """Return a network with every kind of block once or twice, for small images."""
        return ResNetConfig(batch=4, image=32, classes=10, blocks=(1, 2, 1, 1), width=4)


def resnet(config: ResNetConfig, dtype: str = "float32") -> OperatorGraph:
    """Build a ResNet. Inputs: ``images`` (batch, 3, image, image) and ``labels`` (batch) int64. Minimises the mean
    cross-entropy in nats."""
    c = config
    depth = 3 * sum(c.blocks) + 2
    graph = OperatorGraph(dtype, f"ResNet-{depth}")
    x, labels = image_inputs(graph, c.batch, 3, c.image)
    x = ops.conv2d(x, c.width, 7, 2, 3, bias=False, name="conv1")
    x = ops.relu(ops.batch_norm(x, name="bn1"), name="relu")
    x = ops.max_pool2d(x, 3, 2, 1, name="maxpool")
    for stage, count in enumerate(c.blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, c.width << stage, stride, f"layer{stage + 1}.{block}")
    x = ops.flatten(ops.adaptive_avg_pool2d(x, 1, name="avgpool"), 1)
    return classify(graph, ops.linear(x, c.classes, name="fc"), labels)


def _bottleneck(x: Tensor, width: int, stride: int, name: str) -> Tensor:
    """1 x 1, 3 x 3 and 1 x 1 convolutions to 4 ``width`` channels, added to the input or, where the shapes differ, to a
    projection of it."""
    y = ops.conv2d(x, width, 1, bias=False, name=f"{name}.conv1")
    y = ops.relu(ops.batch_norm(y, name=f"{name}.bn1"), name=f"{name}.relu1")
    y = ops.conv2d(y, width, 3, stride, 1, bias=False, name=f"{name}.conv2")
    y = ops.relu(ops.batch_norm(y, name=f"{name}.bn2"), name=f"{name}.relu2")
    y = ops.conv2d(y, 4 * width, 1, bias=False, name=f"{name}.conv3")
    y = ops.batch_norm(y, name=f"{name}.bn3")
    if stride > 1 or x.shape[1] != 4 * width:
        x = ops.conv2d(x, 4 * width, 1, stride, bias=False, name=f"{name}.downsample.0")
        x = ops.batch_norm(x, name=f"{name}.downsample.1")
    return ops.relu(ops.add(y, x, name=f"{name}.add"), name=f"{name}.relu3")
