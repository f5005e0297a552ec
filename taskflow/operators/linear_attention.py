"""linear_attention: attention without softmax, as a recurrence over a state of keys and values whose entries decay and may be
corrected (flash-linear-attention: chunk_simple_gla, chunk_gated_delta_rule, chunk_kda).

Katharopoulos et al., "Transformers are RNNs", arXiv 2006.16236; Yang et al., "Gated delta networks", arXiv 2412.06464, equation 10;
Kimi Team, "Kimi Linear", arXiv 2510.26692 (a decay for each feature of the keys).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Spec, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

CHUNK = 64  # steps that kernels of GPUs take together, by products


@register("linear_attention")
class LinearAttention(Operator):
    """q, k (N, T, G, K), v (N, T, H, V), decay g (N, T, H) or (N, T, H, K), and with a correction beta (N, T, H) -> y (N, T, H, V).
    H is a multiple of G: heads [i H / G, (i + 1) H / G) share queries and keys i. With states S (K, V) that begin as zeros,

        S' = exp(g_t) S_{t-1},  u_t = beta_t (v_t - S'^T k_t), or v_t without beta,  S_t = S' + k_t u_t^T,  y_t = scale S_t^T q_t

    ``eps``: q and k are x / sqrt(the sum of x^2 + eps) over features (None: as they are). Heads can be cut, steps cannot. Nothing
    is kept for backward but the inputs: states, which are computed again, leave the chip neither way.
    """

    work = Work.CONTRACTION
    kept = Keeps(outputs=False)

    scale: float = 1.0
    eps: float | None = None

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if len(inputs) != 5:
            takes("linear_attention", inputs, 4)
        q, k, v, g, *beta = inputs
        plain = q.differentiable and len(q.shape) == len(v.shape) == 4 and all(s.dtype == q.dtype for s in inputs) and q == k
        wanted = ((*v.shape[:3],), (*v.shape[:3], *q.shape[3:]))
        if not plain or v.shape[:2] != q.shape[:2] or g.shape not in wanted or any(s.shape != wanted[0] for s in beta):
            raise ValueError(
                "linear_attention: needs float queries and keys (N, T, G, K), values (N, T, H, V), decays (N, T, H) or "
                f"(N, T, H, K), and perhaps beta (N, T, H), of one type, got {', '.join(map(str, inputs))}"
            )
        if not q.shape[2] or v.shape[2] % q.shape[2]:
            raise ValueError(f"linear_attention: heads must be a multiple of the key heads, got {v.shape[2]} and {q.shape[2]}")
        return (v,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes((inputs[2].shape[0], inputs[2].shape[2]))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, h0), (n1, h1) = piece.lo, piece.hi
        (_, steps, groups, width), (_, _, heads, value) = inputs[0].shape, inputs[2].shape
        each = heads // groups
        shared = Rect((n0, 0, h0 // each, 0), (n1, steps, -(-h1 // each), width))
        own = Rect((n0, 0, h0, 0), (n1, steps, h1, value))
        first = 1 if steps > 1 else 0  # before the first step there is nothing that decays
        last = steps if steps > 1 else 0
        decays = Rect((n0, first, h0, *(0 for _ in inputs[3].shape[3:])), (n1, last, h1, *inputs[3].shape[3:]))
        return Reads((shared, shared, own, decays, *(Rect((n0, 0, h0), (n1, steps, h1)) for _ in inputs[4:])))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self.reads(inputs, piece).inputs[2],)

    def forward(self, call: Call) -> None:
        q, k = (self._normal(x)[0] for x in call.inputs[:2])
        given = (q * self.scale, k, call.inputs[2], _decays(call), _beta(call))
        call.kernels.linear_attention(*given, *_groups(call), call.outputs[0])

    def backward(self, call: Call) -> None:
        (q, q_root), (k, k_root) = map(self._normal, call.inputs[:2])
        given = (q * self.scale, k, call.inputs[2], _decays(call), _beta(call))
        found: list[Any] = [None if array is None else np.empty_like(array) for array in given]
        call.kernels.linear_attention_backward(*given, *_groups(call), call.grad, *found)
        dq, dk, dv, dg, dbeta = found
        dq *= self.scale
        dg = dg[:, dg.shape[1] - call.inputs[3].shape[1] :]
        grads = self._before(dq, q, q_root), self._before(dk, k, k_root), dv, dg, dbeta
        for target, gradient in zip(call.grad_inputs, grads):
            if target is not None and target.array.size:
                target.put(gradient)

    def _normal(self, x: Array) -> tuple[Array, Array]:
        """``x`` as it is used, and by what it was multiplied for that (... 1)."""
        if self.eps is None:
            return x, np.ones_like(x, shape=(*x.shape[:3], 1))
        root = 1 / np.sqrt((x * x).sum(axis=3, keepdims=True) + self.eps)
        return x * root, root

    def _before(self, gradient: Array, x: Array, root: Array) -> Array:
        """The gradient of what `_normal` made ``x`` of, from that of ``x``."""
        return gradient if self.eps is None else root * (gradient - x * (x * gradient).sum(axis=3, keepdims=True))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self._flops(inputs, piece)[0]

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        whole, outputs = self._flops(inputs, piece)
        return 3 * whole - outputs  # two gradients of each product, and all but the outputs once more

    def _flops(self, inputs: Sequence[Spec], piece: Rect) -> tuple[int, int]:
        """Operations of products of chunks, and of them those for outputs: section 3.3 of "Gated delta networks"."""
        steps, width, value = inputs[0].shape[1], inputs[0].shape[3], inputs[2].shape[3]
        chunk = min(CHUNK, steps)
        outputs = 2 * chunk * value + 2 * width * value  # of the chunk's own steps, and of the state
        each = outputs + 2 * chunk * width + 2 * width * value
        if len(inputs) == 5:  # keys with keys, the triangular solution for values and keys, what the state predicts
            each += 2 * chunk * width + chunk * (width + value) + 2 * width * value
        return piece.volume * steps * each, piece.volume * steps * outputs

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, groups, times, width, value = (random.randint(1, 3) for _ in range(5))
        width += 1  # of one number, what is normalised is its sign
        steps, dtype, heads = random.choice((1, 2, 3, 5)), np.dtype(np.float64), groups * times
        q, v = Spec((samples, steps, groups, width), dtype), Spec((samples, steps, heads, value), dtype)
        g = Spec((samples, steps, heads, *((width,) if random.random() < 0.5 else ())), dtype)
        beta = (Spec((samples, steps, heads), dtype),) if random.random() < 0.7 else ()
        return Example(cls(random.uniform(0.3, 1.0), random.choice((None, 0.5))), (q, q, v, g, *beta))


def _decays(call: Call) -> Array:
    """g of all steps and a last dimension of features, or 1: zeros for the first step, which is not read."""
    given, (samples, steps, heads, _) = call.inputs[3], call.inputs[2].shape
    grads = np.zeros_like(call.inputs[2], shape=(samples, steps, heads, *(given.shape[3:] or (1,))))
    if steps > 1:
        grads[:, 1:] = given.reshape(samples, steps - 1, heads, -1)
    return grads if len(call.specs[3].shape) == 4 else grads[..., 0]


def _beta(call: Call) -> Array | None:
    return call.inputs[4] if len(call.inputs) == 5 else None


def _groups(call: Call) -> tuple[int, int]:
    """How many heads share queries and keys, and which of them the piece's first head is."""
    each = call.specs[2].shape[2] // call.specs[0].shape[2]
    return each, call.piece.lo[1] % each


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None = None, *, scale: float | None = None,
    eps: float | None = None, name: str | None = None,
) -> Tensor:
    """Write each step's value under its key into a state that decays, and read the state by the step's query.

    Args: ``query``, ``key`` (N, T, G, K); ``value`` (N, T, H, V), H a multiple of G: heads in groups of H / G share queries and
    keys. ``decay`` (N, T, H), or (N, T, H, K) for each feature by itself: logarithms, 0 or less, of what a step leaves of the
    state. ``beta`` (N, T, H): how far a step corrects what the state has under its key to its value (the delta rule); None: the
    value is added. ``scale``: of results (None: 1 / sqrt(K)). ``eps``: queries and keys are divided by the root of the sum of
    their squares plus this (None: they are not). Returns (N, T, H, V).
    """
    scale = query.shape[-1] ** -0.5 if scale is None and query.ndim else scale
    inputs = (query, key, value, decay) if beta is None else (query, key, value, decay, beta)
    return query.graph.apply(LinearAttention(float(scale or 0), eps), inputs, name=name)[0]
