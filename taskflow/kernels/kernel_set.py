"""KernelSet: the arithmetic that operators call, arrays in and arrays out. Imports nothing of taskflow's other rooms.

Every array is C-contiguous unless a docstring says otherwise. ``out`` is filled; with ``accumulate`` it is added to.
``NumpyKernels`` is the readable reference; other sets (compiled loops, GPU libraries) must agree with it, and a test
compares them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from taskflow.kernels.device import HOST, ArrayDevice

Array = Any
Pair = tuple[int, int]  # of the two dimensions of an image: height, width
Padding = tuple[tuple[int, int], tuple[int, int]]  # zeros (top, bottom), (left, right)
Split = tuple[int, int, int]  # classes; into how many blocks they are divided; the number of the first block that is here
Key = tuple[int, int]  # two 32-bit words: the key of the counter-based generator


class KernelSet(ABC):
    """One implementation of every kernel."""

    __slots__ = ()

    name: str
    device: ArrayDevice = HOST
    """Where the arrays lie that its kernels take."""
    threads: int = 1
    """How many threads of the host a large kernel runs on, those of numpy's BLAS apart (the library counts its own)."""

    @property
    def xp(self) -> Any:
        """The array module of its arrays: numpy, or one with its interface."""
        return self.device.xp

    def constant(self, key: Hashable, make: Callable[[], np.ndarray[Any, Any]]) -> Array:
        """An array that operators compute on the host and only read. ``key`` says all that it depends on, so that a device
        keeps it."""
        return make()

    # ---- parts of arrays: any strides, any dtype ------------------------------------------------------------------
    def copy(self, x: Array, out: Array) -> None:
        """out = x. They may not overlap."""
        np.copyto(out, x)

    def add(self, x: Array, out: Array) -> None:
        """out += x. They may not overlap."""
        np.add(out, x, out=out)

    # ---- contractions -------------------------------------------------------------------------------------------
    @abstractmethod
    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """a (..., M, K) @ b (..., K, N) -> out (..., M, N). ``a`` and ``b`` may be transposed views."""

    def multiplier(
        self, b: Array, rows: int, uses: int, stamp: object = None, room: Array | None = None
    ) -> Callable[[Array, Array], None]:
        """A function (a, out) that adds a (rows, K) @ b (K, N) to out (rows, N), both contiguous, for products that are
        done ``uses`` times: a set may first lay b out as suits it. ``stamp``: b's contents are the same as at the last
        call with b's memory and an equal stamp, so that what was laid out then may be used again; with None the function
        serves until the next one is asked for. ``room``: bytes to lay b out in, if they
        suffice, the same ones with an equal stamp."""

        def multiply(a: Array, out: Array) -> None:
            self.matmul(a, b, out, accumulate=True)

        return multiply

    @abstractmethod
    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        """x (R, C) -> out (C), the sum over rows."""

    # ---- LSTM ---------------------------------------------------------------------------------------------------
    @abstractmethod
    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        """gates (N, 4, H): pre-activations of i, f, g, o, replaced by their activations. c_prev (N, H) ->
        c = f c_prev + i g, h = o tanh(c). All may be strided over N, such as ``gates[:, t]`` of (N, T, 4, H)."""

    @abstractmethod
    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        """gates (N, 4, H): activations that `lstm_cell` left. dh (N, H): gradient of h. dc (N, H): in, the gradient of
        c from the next step; out, the gradient of c_prev. dgates (N, 4, H): gradient of the pre-activations. All may be
        strided over N."""

    # ---- convolution: images (N, C, H, W), weights (K, C / groups, kh, kw) -----------------------------------------
    @abstractmethod
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        out: Array,
    ) -> None:
        """out (N, K, Ho, Wo) = cross-correlation of x and weight, plus bias (K). ``padding`` may differ on the two sides
        of a dimension. The padded image is just what the windows cover: (Ho - 1) stride + (kh - 1) dilation + 1 rows."""

    @abstractmethod
    def conv2d_backward_data(
        self, dy: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        """dy (N, K, Ho, Wo) -> out (N, C, H, W), the gradient of x."""

    @abstractmethod
    def conv2d_backward_weight(
        self, x: Array, dy: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, out: Array,
        accumulate: bool = False,
    ) -> None:
        """x, dy (N, K, Ho, Wo) -> out (K, C / groups, kh, kw), the gradient of the weight."""

    # ---- pooling: padding and sizes as in `conv2d` ------------------------------------------------------------------
    @abstractmethod
    def max_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array, index: Array, dilation: Pair = (1, 1)
    ) -> None:
        """out (N, C, Ho, Wo): the maximum of each window; index, of that shape and an unsigned type: which element of
        the window (row-major) it was, the first of equals (a NaN if there is one). Padding never wins; a window of
        nothing else gives minus infinity."""

    @abstractmethod
    def max_pool2d_backward(
        self, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Padding, out: Array,
        accumulate: bool = False, dilation: Pair = (1, 1),
    ) -> None:
        """dy and index (N, C, Ho, Wo) -> out (N, C, H, W), the gradient of x."""

    @abstractmethod
    def sum_pool2d(
        self, x: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array
    ) -> None:
        """out (N, C, Ho, Wo) = scale (Ho, Wo) times the sum of each window."""

    @abstractmethod
    def sum_pool2d_backward(
        self, dy: Array, kernel: Pair, stride: Pair, padding: Padding, scale: Array, out: Array,
        accumulate: bool = False,
    ) -> None:
        """dy (N, C, Ho, Wo) -> out (N, C, H, W), the gradient of x."""

    # ---- normalisation of channels: x (N, C, P) -------------------------------------------------------------------
    @abstractmethod
    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        """out (C): the sum of every channel."""

    @abstractmethod
    def channel_moments(self, x: Array, out: Array) -> None:
        """out (2, C) float64: of every channel the sums of x and of its square, added in double precision."""

    @abstractmethod
    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        """out (2, C) float64: of every channel the sums of dy and of dy x, added in double precision."""

    @abstractmethod
    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        """out (N, C, P) = x scale + offset, with scale and offset (C)."""

    @abstractmethod
    def channel_scales(self, sums: Array, count: int, eps: float, weight: Array, bias: Array, out: Array) -> None:
        """out (2, C): the scale and offset with which `channel_affine` normalises by the mean and variance that ``sums`` (2, C)
        float64 tell: those of x and of its square, over ``count`` elements; weight and bias (C)."""

    @abstractmethod
    def channel_changes(self, sums: Array, count: int, eps: float, weight: Array, products: Array, out: Array) -> None:
        """out (5, C) float64: the scale of `channel_scales`, and the gradients of bias, of weight and of both ``sums``, from
        ``products`` (2, C) float64, what `channel_products` says of the gradient of the normalised images."""

    @abstractmethod
    def channel_running(
        self, moments: Array, count: int, momentum: float, correction: float, mean: Array, variance: Array, new_mean: Array,
        new_variance: Array,
    ) -> None:
        """Running mean and variance (C) moved by ``momentum`` to the average of groups, each of ``count`` elements; moments (G,
        2, C) float64 has every group's sums of x and of its square. ``correction`` multiplies the variance."""

    # ---- normalisation of rows ------------------------------------------------------------------------------------
    @abstractmethod
    def layer_norm(
        self, x: Array, weight: Array, bias: Array, eps: float, out: Array, statistics: Array
    ) -> None:
        """out (R, C) = (x - mean) / sqrt(variance + eps) weight + bias of every row; statistics (R, 2) gets the mean and
        1 / sqrt(variance + eps)."""

    @abstractmethod
    def layer_norm_backward(
        self, x: Array, weight: Array, statistics: Array, dy: Array, out: Array | None, sums: Array | None,
        accumulate: bool = False,
    ) -> None:
        """From the statistics that `layer_norm` left: out (R, C), the gradient of x, and sums (2, C), those of the weight
        and the bias. What is None is not computed; ``accumulate`` is about ``out`` alone."""

    # ---- activations, of any shape --------------------------------------------------------------------------------
    @abstractmethod
    def activate(self, function: str, x: Array, out: Array) -> None:
        """out = relu, sigmoid or tanh of x."""

    @abstractmethod
    def activate_backward(self, function: str, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        """-> dy times the derivative of the function where its value is y; relu's is 0 where y is."""

    @abstractmethod
    def gelu(self, x: Array, approximate: bool, out: Array) -> None:
        """out = x Phi(x), Phi the normal distribution, or its approximation by a tanh."""

    @abstractmethod
    def gelu_backward(
        self, x: Array, approximate: bool, dy: Array, out: Array, accumulate: bool = False
    ) -> None:
        """-> dy times the derivative of gelu at x."""

    # ---- softmax and losses --------------------------------------------------------------------------------------
    @abstractmethod
    def softmax(self, x: Array, out: Array, ends: Array | None = None) -> None:
        """x (R, C) -> out (R, C), softmax of every row. With ``ends`` (R) integers, of the first ends[r] columns of row
        r, and zeros behind them; x may then have fewer columns than out, but no fewer than the largest end."""

    @abstractmethod
    def softmax_backward(self, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        """y (R, C): softmax's output, dy its gradient -> the gradient of x."""

    @abstractmethod
    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> Any:
        """logits (R, C), target (R) integers -> the sum over rows of -log softmax(logits)[target], rows whose target is
        ``ignore`` left out; probabilities (R, C) is filled with softmax(logits). Any other target outside [0, C) is an
        IndexError; on a device that does not wait the sum is then not a number, and it comes as an array ().
        ``smoothing``: the weight that the target gives to all classes in equal shares."""

    @abstractmethod
    def cross_entropy_backward(
        self, probabilities: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        """-> scale (probabilities - (1 - smoothing) onehot(target) - smoothing / C), zero in rows whose target is
        ``ignore``: (R, C)."""

    # ---- the same in blocks of classes: see taskflow.operators.class_blocks ----------------------------------------
    @abstractmethod
    def class_blocks(
        self, logits: Array, target: Array, ignore: int, split: Split, probabilities: Array, out: Array, smoothing: float = 0.0
    ) -> None:
        """logits (R, W): the scores of some whole blocks of all classes, target (R) integers below the number of classes ->
        out (R, 2 b) float64, for each of these blocks a pair: the logarithm of the sum of exp(scores), and of the score
        (1 - smoothing) onehot(target) . scores + smoothing / classes . sum of scores what lies in the block;
        probabilities (R, W) is filled with the softmax of every block. Both are zeros in rows whose target is ``ignore``;
        other targets outside of the classes are an IndexError, or not a number on a device that does not wait."""

    @abstractmethod
    def class_blocks_backward(
        self, probabilities: Array, target: Array, ignore: int, split: Split, dy: Array, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        """dy (R, 2 b) float64, the gradient of what `class_blocks` gives -> that of the scores (R, W)."""

    @abstractmethod
    def cross_entropy_of_blocks(self, y: Array, target: Array, ignore: int, shares: Array) -> Any:
        """y (R, 2 B), the pairs of all blocks -> the sum over rows of log(sum of exp(first)) - sum of second, rows whose
        target is ``ignore`` left out; shares (R, B) is filled with the softmax over the blocks' first, zeros in those rows."""

    @abstractmethod
    def cross_entropy_of_blocks_backward(
        self, shares: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False
    ) -> None:
        """-> for each block the pair scale shares, -scale; zeros in rows whose target is ``ignore``: (R, 2 B)."""

    # ---- embedding ----------------------------------------------------------------------------------------------
    @abstractmethod
    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        """out[r] = table[index[r] - first] for index (R), table (V, E), out (R, E); rows whose index lies outside
        ``[first, first + V)`` become zero."""

    @abstractmethod
    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        """out[index[r] - first] += dy[r], r rising; indices outside the table are left out. out (V, E)."""

    # ---- random numbers (Philox 4x32-10, Salmon et al., SC 2011) ------------------------------------------------
    @abstractmethod
    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        """out holds the box at ``lo`` of an array of ``shape``; each element becomes a number in [0, 1) that depends
        only on the key, the stream (below 2**32) and the element's row-major position in the whole array (below 2**64):
        word ``position % 4`` of Philox at counter ``position // 4`` (words: low, high, stream, 0), times 2**-32 (in
        float32 its upper 24 bits, times 2**-24)."""

    @abstractmethod
    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        """Standard normal numbers, by position like `uniform` (Box-Muller: positions 2k, 2k+1 share two words)."""

    @abstractmethod
    def dropout(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], p: float, x: Array, out: Array,
        mask: Array,
    ) -> None:
        """x is the box at ``lo`` of an array of ``shape``. Where its element of `uniform` is at least p, out =
        x / (1 - p) and mask (bool) is true; elsewhere both are 0."""

    @abstractmethod
    def dropout_backward(self, mask: Array, p: float, dy: Array, out: Array, accumulate: bool = False) -> None:
        """-> dy / (1 - p) where the mask is true, else 0."""

    # ---- update rules -------------------------------------------------------------------------------------------
    @abstractmethod
    def sgd(
        self, w: Array, g: Array, velocity: Array | None, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, scale: float, first: bool,
    ) -> None:
        """torch.optim.SGD's step on flat arrays, with g multiplied by ``scale`` first. ``first``: velocity starts as
        the gradient."""

    @abstractmethod
    def adam(
        self, w: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, decoupled: bool, scale: float, step: int,
    ) -> None:
        """torch.optim.Adam's step (AdamW's if ``decoupled``) on flat arrays; ``step`` counts from 1."""

    @abstractmethod
    def sum_of_squares(self, x: Array) -> Any:
        """In double precision, in a fixed order; a float, or an array () on a device that does not wait."""
