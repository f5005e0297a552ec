"""AlexNet in its one-tower form: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv
1404.5997), after Krizhevsky, Sutskever and Hinton (NIPS 2012). Layers are named as in torchvision."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.classifier import classify, image_inputs


@dataclass(frozen=True, slots=True)
class AlexNetConfig:
    """Sizes of the network; the defaults are the paper's. ``batch`` is of the whole machine, ``image`` the height and
    width of its images."""

    batch: int = 256
    image: int = 224
    classes: int = 1000
    channels: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256)
    pooled: int = 6
    hidden: int = 4096
    dropout: float = 0.5

    @staticmethod
    def small() -> AlexNetConfig:
        """Return the same layers for small images, to try out and to test."""
        return AlexNetConfig(
            batch=8, image=63, classes=10, channels=(8, 12, 16, 12, 12), pooled=2, hidden=32, dropout=0.1
        )


def alexnet(config: AlexNetConfig, dtype: str = "float32") -> OperatorGraph:
    """Build AlexNet. Inputs: ``images`` (batch, 3, image, image) and ``labels`` (batch) int64. Minimises the mean cross-entropy
    in nats."""
    c = config
    graph = OperatorGraph(dtype, "AlexNet")
    x, labels = image_inputs(graph, c.batch, 3, c.image)
    # Number in torchvision's "features", channels, kernel, stride, padding, and whether pooling follows.
    layers = ((0, 11, 4, 2, True), (3, 5, 1, 2, True), (6, 3, 1, 1, False), (8, 3, 1, 1, False), (10, 3, 1, 1, True))
    for channels, (number, kernel, stride, padding, pool) in zip(c.channels, layers):
        x = ops.conv2d(x, channels, kernel, stride, padding, name=f"features.{number}")
        x = ops.relu(x, name=f"features.{number + 1}")
        if pool:
            x = ops.max_pool2d(x, 3, 2, name=f"features.{number + 2}")
    if x.shape[2:] != (c.pooled, c.pooled):
        x = ops.adaptive_avg_pool2d(x, c.pooled, name="avgpool")
    x = ops.flatten(x, 1)
    for number in (1, 4):
        if c.dropout:
            x = ops.dropout(x, c.dropout, name=f"classifier.{number - 1}")
        x = ops.linear(x, c.hidden, name=f"classifier.{number}")
        x = ops.relu(x, name=f"classifier.{number + 1}")
    return classify(graph, ops.linear(x, c.classes, name="classifier.6"), labels)
