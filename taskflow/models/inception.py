"""Inception-v3 without the auxiliary head: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception
architecture for computer vision" (arXiv 1512.00567). Layers are named as in torchvision."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.classifier import classify, image_inputs
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import Pair


@dataclass(frozen=True, slots=True)
class InceptionConfig:
    """Sizes of the network; the defaults are Inception-v3's. ``batch`` is of the whole machine, ``image`` the height and width
    of its images, at least 75. ``divide``: the number of channels of every layer is divided by this."""

    batch: int = 64
    image: int = 299
    classes: int = 1000
    divide: int = 1
    dropout: float = 0.5
    label_smoothing: float = 0.1

    @staticmethod
    def small() -> InceptionConfig:
        """Return all modules, narrow, for the smallest images that they take."""
        return InceptionConfig(batch=4, image=75, classes=10, divide=16, dropout=0.1)


def inception_v3(config: InceptionConfig, dtype: str = "float32") -> OperatorGraph:
    """Build Inception-v3. Inputs: ``images`` (batch, 3, image, image) and ``labels`` (batch) int64. Minimises the mean
    cross-entropy in nats, with smoothed labels."""
    c = config
    graph = OperatorGraph(dtype, "Inception-v3")
    x, labels = image_inputs(graph, c.batch, 3, c.image)
    build = _Modules(c.divide)
    x = build.stem(x)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = build.a(x, pooled, name)
    x = build.b(x, "Mixed_6a")
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = build.c(x, inner, name)
    x = build.d(x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        x = build.e(x, name)
    x = ops.flatten(ops.adaptive_avg_pool2d(x, 1, name="avgpool"), 1)
    if c.dropout:
        x = ops.dropout(x, c.dropout, name="dropout")
    return classify(graph, ops.linear(x, c.classes, name="fc"), labels, c.label_smoothing)


@dataclass(frozen=True, slots=True)
class _Modules:
    """The kinds of module, each with ``divide`` times fewer channels than published."""

    divide: int

    def conv(
        self, x: Tensor, channels: int, kernel: int | Pair, name: str, stride: int = 1, padding: int | Pair = 0
    ) -> Tensor:
        """Convolution without bias, batch normalisation, relu."""
        width = max(1, channels // self.divide)
        y = ops.conv2d(x, width, kernel, stride, padding, bias=False, name=f"{name}.conv")
        return ops.relu(ops.batch_norm(y, eps=1e-3, name=f"{name}.bn"), name=f"{name}.relu")

    def stem(self, x: Tensor) -> Tensor:
        x = self.conv(x, 32, 3, "Conv2d_1a_3x3", stride=2)
        x = self.conv(x, 32, 3, "Conv2d_2a_3x3")
        x = self.conv(x, 64, 3, "Conv2d_2b_3x3", padding=1)
        x = ops.max_pool2d(x, 3, 2, name="maxpool1")
        x = self.conv(x, 80, 1, "Conv2d_3b_1x1")
        x = self.conv(x, 192, 3, "Conv2d_4a_3x3")
        return ops.max_pool2d(x, 3, 2, name="maxpool2")

    def a(self, x: Tensor, pooled: int, name: str) -> Tensor:
        """Branches of 1 x 1, 5 x 5, twice 3 x 3, and pooling."""
        one = self.conv(x, 64, 1, f"{name}.branch1x1")
        five = self.conv(x, 48, 1, f"{name}.branch5x5_1")
        five = self.conv(five, 64, 5, f"{name}.branch5x5_2", padding=2)
        three = self.conv(x, 64, 1, f"{name}.branch3x3dbl_1")
        three = self.conv(three, 96, 3, f"{name}.branch3x3dbl_2", padding=1)
        three = self.conv(three, 96, 3, f"{name}.branch3x3dbl_3", padding=1)
        pool = self._pool(x, pooled, name)
        return ops.concat((one, five, three, pool), 1, name=f"{name}.concat")

    def b(self, x: Tensor, name: str) -> Tensor:
        """Halve the size: 3 x 3, twice 3 x 3, and pooling."""
        three = self.conv(x, 384, 3, f"{name}.branch3x3", stride=2)
        double = self.conv(x, 64, 1, f"{name}.branch3x3dbl_1")
        double = self.conv(double, 96, 3, f"{name}.branch3x3dbl_2", padding=1)
        double = self.conv(double, 96, 3, f"{name}.branch3x3dbl_3", stride=2)
        pool = ops.max_pool2d(x, 3, 2, name=f"{name}.branch_pool")
        return ops.concat((three, double, pool), 1, name=f"{name}.concat")

    def c(self, x: Tensor, inner: int, name: str) -> Tensor:
        """Branches of 1 x 1, 7 x 7 and twice 7 x 7 as rows and columns, and pooling."""
        row: tuple[Pair, Pair] = ((1, 7), (0, 3))
        column: tuple[Pair, Pair] = ((7, 1), (3, 0))
        one = self.conv(x, 192, 1, f"{name}.branch1x1")
        seven = self.conv(x, inner, 1, f"{name}.branch7x7_1")
        for number, (kernel, padding), channels in ((2, row, inner), (3, column, 192)):
            seven = self.conv(seven, channels, kernel, f"{name}.branch7x7_{number}", padding=padding)
        double = self.conv(x, inner, 1, f"{name}.branch7x7dbl_1")
        for number, (kernel, padding), channels in (
            (2, column, inner), (3, row, inner), (4, column, inner), (5, row, 192)
        ):
            double = self.conv(double, channels, kernel, f"{name}.branch7x7dbl_{number}", padding=padding)
        pool = self._pool(x, 192, name)
        return ops.concat((one, seven, double, pool), 1, name=f"{name}.concat")

    def d(self, x: Tensor, name: str) -> Tensor:
        """Halve the size: 3 x 3, 7 x 7 and 3 x 3, and pooling."""
        three = self.conv(x, 192, 1, f"{name}.branch3x3_1")
        three = self.conv(three, 320, 3, f"{name}.branch3x3_2", stride=2)
        seven = self.conv(x, 192, 1, f"{name}.branch7x7x3_1")
        seven = self.conv(seven, 192, (1, 7), f"{name}.branch7x7x3_2", padding=(0, 3))
        seven = self.conv(seven, 192, (7, 1), f"{name}.branch7x7x3_3", padding=(3, 0))
        seven = self.conv(seven, 192, 3, f"{name}.branch7x7x3_4", stride=2)
        pool = ops.max_pool2d(x, 3, 2, name=f"{name}.branch_pool")
        return ops.concat((three, seven, pool), 1, name=f"{name}.concat")

    def e(self, x: Tensor, name: str) -> Tensor:
        """Branches of 1 x 1, and of 3 x 3 that end in a row and a column side by side, and pooling."""
        one = self.conv(x, 320, 1, f"{name}.branch1x1")
        three = self.conv(x, 384, 1, f"{name}.branch3x3_1")
        double = self.conv(x, 448, 1, f"{name}.branch3x3dbl_1")
        double = self.conv(double, 384, 3, f"{name}.branch3x3dbl_2", padding=1)
        sides = [
            self.conv(y, 384, kernel, f"{name}.{branch}{side}", padding=padding)
            for y, branch in ((three, "branch3x3_2"), (double, "branch3x3dbl_3"))
            for side, kernel, padding in (("a", (1, 3), (0, 1)), ("b", (3, 1), (1, 0)))
        ]
        return ops.concat((one, *sides, self._pool(x, 192, name)), 1, name=f"{name}.concat")

    def _pool(self, x: Tensor, channels: int, name: str) -> Tensor:
        pool = ops.avg_pool2d(x, 3, 1, 1, name=f"{name}.avgpool")
        return self.conv(pool, channels, 1, f"{name}.branch_pool")
