"""LeNet-5: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition" (Proceedings of
the IEEE, 1998), with relu and max pooling as it is used today. Six layers besides the activations, as the paper says."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.classifier import classify, image_inputs


@dataclass(frozen=True, slots=True)
class LeNetConfig:
    """Sizes of the network. ``batch`` is of the whole machine, ``image`` the height and width of its images. The first
    convolution pads images below 32 to 32, such as MNIST's 28."""

    batch: int = 64
    image: int = 28
    channels: int = 1
    classes: int = 10

    @staticmethod
    def small() -> LeNetConfig:
        """Return a small batch of images as small as scikit-learn's digits, 8 x 8."""
        return LeNetConfig(batch=6, image=8)


def lenet(config: LeNetConfig, dtype: str = "float32") -> OperatorGraph:
    """Build LeNet-5. Inputs: ``images`` (batch, channels, image, image) and ``labels`` (batch) int64. Minimises the mean
    cross-entropy in nats."""
    c = config
    graph = OperatorGraph(dtype, "LeNet")
    x, labels = image_inputs(graph, c.batch, c.channels, c.image)
    before = max(0, 32 - c.image) // 2
    border = (before, max(0, 32 - c.image) - before)
    x = ops.relu(ops.conv2d(x, 6, 5, padding=(border, border), name="conv1"), name="relu1")
    x = ops.max_pool2d(x, 2, name="pool1")
    x = ops.relu(ops.conv2d(x, 16, 5, name="conv2"), name="relu2")
    x = ops.flatten(ops.max_pool2d(x, 2, name="pool2"), 1)
    x = ops.relu(ops.linear(x, 120, name="fc1"), name="relu3")
    x = ops.relu(ops.linear(x, 84, name="fc2"), name="relu4")
    return classify(graph, ops.linear(x, c.classes, name="fc3"), labels)
