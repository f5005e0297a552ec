"""Work that is timed: PyTorch's operators by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from taskflow.probe.cases import Case

APART_BYTES, MOST_COPIES = 1 << 25, 8  # copies of a case's arrays have so many bytes, so that caches are as cold as in a step
Call = Callable[..., Any]


def conv2d_of(case: Case) -> Call:
    """A convolution that pads to keep the size."""
    kernel, stride = case.sizes[-2:]
    return lambda x, weight: nn.functional.conv2d(x, weight, stride=stride, padding=kernel // 2)


def rotary_of(case: Case) -> Call:
    """Rotations by tables that are there, as Hugging Face's decoders write them, of heads behind positions."""
    tables: list[Any] = []

    def call(x: Any) -> Any:
        if not tables:
            tables[:] = [torch.ones(case.sizes[1], 1, case.sizes[3], dtype=x.dtype, device=x.device) for _ in range(2)]
        first, second = x.chunk(2, -1)
        return x * tables[0] + torch.cat((-second, first), -1) * tables[1]

    return call


def recurrent_of(call: Call, states: int) -> Callable[[Case], Call]:
    """A recurrent layer that begins with zeros."""

    def built(case: Case) -> Call:
        def run(x: Any, *weights: Any) -> Any:
            first = x.new_zeros(1, len(x), case.sizes[-1])
            return call(x, (first,) * states if states > 1 else first, list(weights), True, 1, 0.0, True, False, True)[0]

        return run

    return built


def rms_norm_parts(x: Any, weight: Any) -> Any:
    """Normalisation as Hugging Face's decoders write it."""
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def attention_of(case: Case) -> Call:
    """Attention by the kernel that PyTorch chooses."""
    return lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(case.sizes[-1]))


def experts_of(case: Case) -> Call:
    """Gated layers of experts, to which rows are given in the order of the experts."""
    _, count, chosen, _, _ = case.sizes

    def call(x: Any, which: Any, wide: Any, narrow: Any, weights: Any) -> Any:
        order = which.view(-1).argsort()
        counts = which.new_zeros(count).index_add(0, which.view(-1), torch.ones_like(which.view(-1)))  # bincount waits for a GPU
        gate, up = grouped(x[order // chosen], wide, counts).chunk(2, -1)
        rows = grouped(nn.functional.silu(gate) * up, narrow, counts) * weights.view(-1)[order, None]
        return torch.zeros_like(x).index_add(0, order // chosen, rows)

    return call


def grouped(rows: Any, weights: Any, counts: Any) -> Any:
    """Products of as many rows with each expert's weights as ``counts`` says."""
    if hasattr(nn.functional, "grouped_mm"):
        return nn.functional.grouped_mm(rows, weights.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))
    return torch.cat([nn.functional.linear(some, one) for some, one in zip(rows.split(counts.tolist()), weights)])


OF_SIZES: dict[str, Callable[[Case], Call]] = {
    "conv2d": conv2d_of, "attention": attention_of, "experts": experts_of, "rotary": rotary_of,
    "lstm": recurrent_of(torch.lstm, 2), "gru": recurrent_of(torch.gru, 1),
    "depthwise": lambda case: lambda x, weight: nn.functional.conv2d(x, weight, padding=case.sizes[-1] // 2, groups=case.sizes[1]),
    "layer_norm": lambda case: lambda x, weight, bias: nn.functional.layer_norm(x, case.sizes[1:], weight, bias),
    "rms_norm": lambda case: lambda x, weight: nn.functional.rms_norm(x, case.sizes[1:], weight),
}  # fmt: skip
"""Of operators whose calls depend on their sizes."""
CALLS: dict[str, Call] = {
    "linear": nn.functional.linear, "matmul": torch.matmul, "softmax": lambda x: torch.softmax(x, -1),
    "batch_norm": lambda x, weight, bias: nn.functional.batch_norm(x, None, None, weight, bias, training=True),
    "cross_entropy": nn.functional.cross_entropy, "embedding": lambda which, table: nn.functional.embedding(which, table),
    "pool": lambda x: nn.functional.max_pool2d(x, 2), "turned": lambda x: x.transpose(1, 2).contiguous(),
    "rms_norm_parts": rms_norm_parts, "swiglu": lambda x, y: nn.functional.silu(x) * y,
    "gelu": nn.functional.gelu, "silu": nn.functional.silu, "relu": torch.relu, "add": torch.add, "mul": torch.mul,
    "dropout": lambda x: nn.functional.dropout(x, 0.1), "mean": lambda x: x.mean(-1), "view": lambda x: x.view(-1),
}  # fmt: skip


def call_of(case: Case) -> Call:
    """Return what computes a case."""
    return OF_SIZES[case.name](case) if case.name in OF_SIZES else CALLS[case.name]


def arrays_of(case: Case, dtype: torch.dtype, device: torch.device, most: float = MOST_COPIES) -> list[list[torch.Tensor]]:
    """Return several copies of a case's arguments, as many as ``most``."""
    apart = APART_BYTES
    if device.type == "cuda":
        apart = max(apart, 2 * getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    copies = max(1, int(min(MOST_COPIES, most, apart // max(1, case.nbytes(dtype.itemsize)))))

    def array(shape: tuple[int, ...]) -> torch.Tensor:
        if shape[0] < 0:
            return torch.randint(-shape[0], shape[1:], device=device)
        return torch.randn(shape, dtype=torch.float32, device=device).to(dtype).requires_grad_()

    return [[array(shape) for shape in case.shapes] for _ in range(copies)]


def phases_of(case: Case, arrays: Sequence[Sequence[torch.Tensor]]) -> list[Callable[[], Any]]:
    """Return forward and backward of all copies, one after the other. Both keep what they make until the next time."""
    results, call = list[Any](), call_of(case)
    trained = [value for given in arrays for value in given if value.requires_grad]
    with torch.no_grad():
        ones = [torch.ones_like(call(*given)) for given in arrays]

    def forward() -> None:
        results[:] = [call(*given) for given in arrays]

    def backward() -> Any:
        return torch.autograd.grad(results, trained, ones)

    return [forward, backward]
