"""Experts of Hugging Face's networks: feed-forward layers, some of which each token uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import clamp
from taskflow.models.pytorch.site import Site, Unsupported, require
from taskflow.operators.tensor import Tensor

PARTS = ("gate_proj", "up_proj", "down_proj")
"""Our weights: gates and values, which lie in one array there, and what leads back to the tokens' features."""
SCALED_EXPERTS = "transformers.models.llama4.modeling_llama4.Llama4TextExperts"
SCALED = "transformers.models.llama4.modeling_llama4.Llama4TextMoe"
"""Llama 4's layer of experts, which scales what an expert reads and computes every expert for every token, mostly of zeros."""
STD = 0.02  # of biases at the start


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """How weights of experts lie: ``turned``: (experts, in, out) in place of (experts, out, in). ``mixed``: gates and values in
    turn, in place of all gates first. ``biases``: whether there are any."""

    turned: bool = False
    mixed: bool = False
    biases: bool = False


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One of our parameters: its ``name`` below the module, the parameter ``of`` the module that it is in, and ``take``, which
    takes it out of that array (of numpy or of PyTorch)."""

    name: str
    of: str
    take: Callable[[Any], Any]


def is_experts(module: nn.Module) -> bool:
    """True for classes decorated with ``use_experts_implementation``, which gives one layer several algorithms."""
    stated = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "num_experts")
    return type(module).__module__.startswith("transformers.models.") and all(hasattr(module, name) for name in stated)


def layout_of(module: Any) -> ExpertLayout | None:
    """Return how the weights of a module of experts lie; None for other modules."""
    if f"{type(module).__module__}.{type(module).__qualname__}" == SCALED_EXPERTS:
        return ExpertLayout(turned=True)
    return ExpertLayout(module.is_transposed, not module.is_concatenated, module.has_bias) if is_experts(module) else None


def parts_of(module: Any, layout: ExpertLayout) -> list[ExpertPart]:
    """Return our parameters of a module of experts."""
    features = 2 if layout.turned else 1

    def taken(which: int, axis: int, turned: bool) -> Callable[[Any], Any]:
        def take(array: Any) -> Any:
            half = array.shape[axis] // 2
            both = slice(which, None, 2) if layout.mixed else slice(which * half, (which + 1) * half)
            index = (*[slice(None)] * axis, both) if which < 2 else (slice(None),)
            return array[index].swapaxes(1, 2) if turned else array[index]

        return take

    found = []
    for which, name in enumerate(PARTS):
        of = "down_proj" if which == 2 else "gate_up_proj"
        found.append(ExpertPart(f"{name}.weight", of, taken(which, features, layout.turned)))
        if layout.biases:
            found.append(ExpertPart(f"{name}.bias.weight", f"{of}_bias", taken(which, 1, False)))
    return found


def experts(site: Site, m: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Build hidden_states (S, M), top_k_index and top_k_weights (S, k) -> (S, M): the sum over k of the weight times the
    expert's output for the token. Every token is served ("dropless")."""
    layout = layout_of(m)
    assert layout is not None, "only modules of experts have this handler"
    known = {"gate_up_proj", "down_proj", *(("gate_up_proj_bias", "down_proj_bias") if layout.biases else ())}
    plain = m.has_gate and not getattr(m, "has_post_expert_norm", False) and {name for name, _ in m.named_parameters()} == known
    require(plain, "experts with norms, without gates, or with further weights; only those with gates, values and biases of these")
    gate = _gate_of(m)
    sizes = {part.name: tuple(part.take(getattr(m, part.of)).shape) for part in parts_of(m, layout)}
    count, inner, features = sizes["gate_proj.weight"]
    tokens, choices = top_k_index.shape
    groups = _groups(site, tokens)
    x = ops.reshape(hidden_states, (groups, tokens // groups, features), name=f"{site.name}.tokens")
    chosen = ops.reshape(top_k_index, (groups, tokens // groups, choices), name=f"{site.name}.chosen")
    weights = ops.reshape(top_k_weights, (groups, tokens // groups, choices), name=f"{site.name}.weights")

    def layer(x: Tensor, width: int, part: str) -> Tensor:
        result = ops.routed_linear(x, chosen, count, width, name=f"{site.name}.{part}")
        if not layout.biases:
            return result
        bias = ops.embedding(chosen, count, width, std=STD, name=f"{site.name}.{part}.bias")
        return ops.add(result, bias, name=f"{site.name}.{part}.biased")

    result = gate(site, layer(x, inner, PARTS[0]), layer(x, inner, PARTS[1]))
    result = layer(result, features, PARTS[2])
    weights = ops.cast(weights, result.dtype, name=f"{site.name}.weights_type")  # of routers, which may be in float32
    result = ops.einsum("ntkh,ntk->nth", result, weights, name=f"{site.name}.combine")
    return ops.reshape(result, (tokens, features), name=site.name)


def scaled_experts(site: Site, m: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Build Llama 4's layer: hidden_states (N, T, M) -> (N T, M), and the router's scores (N T, E). A token goes to its k best
    experts, each of which reads it times the sigmoid of the score; a part that every token uses is added. (There, the others read
    it times 0: without biases they give 0, and no gradient.)"""
    inner, router, shared = m.experts, m.router, m.shared_expert
    require(_is_silu(inner.act_fn) and _is_silu(shared.activation_fn), "the activation must be SiLU")
    linears = (shared.gate_proj, shared.up_proj, shared.down_proj)
    plain = all(type(part) is nn.Linear for part in linears) and not any(part.bias is not None for part in (router, *linears))
    require(plain, "its router and its shared expert must be dense layers without biases and adapters")
    samples, features = hidden_states.shape[0], hidden_states.shape[-1]
    rows = ops.reshape(hidden_states, (samples, -1, features), name=f"{site.name}.tokens")
    tokens = rows.shape[1]

    def linear(x: Tensor, part: nn.Linear, path: str) -> Tensor:
        return site.below(path).build(ops.linear, [part.weight], x, part.out_features, False)

    scores = linear(rows, router, "router")
    best, chosen = ops.top_k(scores, m.top_k, name=f"{site.name}.router.top_k")
    wide = ops.cast(best, "float32" if best.dtype.itemsize < 4 else best.dtype, name=f"{site.name}.router.wide")
    weights = ops.cast(ops.sigmoid(wide, name=f"{site.name}.router.sigmoid"), rows.dtype, name=f"{site.name}.router.weights")
    if m.top_k == 1:
        x = ops.mul(rows, weights, name=f"{site.name}.scaled")
    else:
        each = (ops.reshape(rows, (samples, tokens, 1, features), name=f"{site.name}.each"),
                ops.reshape(weights, (*weights.shape, 1), name=f"{site.name}.of_each"))
        x = ops.mul(*each, name=f"{site.name}.scaled")
    gate, up = (
        ops.routed_linear(x, chosen, m.num_experts, inner.expert_dim, name=f"{site.name}.experts.{part}") for part in PARTS[:2]
    )
    result = ops.swiglu(gate, up, name=f"{site.name}.experts.act")
    result = ops.routed_linear(result, chosen, m.num_experts, features, name=f"{site.name}.experts.{PARTS[2]}")
    result = ops.sum(result, 2, name=f"{site.name}.experts.combine")
    gate, up = (linear(rows, part, f"shared_expert.{name}") for name, part in zip(PARTS, (shared.gate_proj, shared.up_proj)))
    both = linear(ops.swiglu(gate, up, name=f"{site.name}.shared_expert.act"), shared.down_proj, "shared_expert.down_proj")
    joined = ops.add(both, result, name=f"{site.name}.joined")
    return (
        ops.reshape(joined, (samples * tokens, features), name=site.name),
        ops.reshape(scores, (samples * tokens, m.num_experts), name=f"{site.name}.scores"),
    )


def _is_silu(activation: Any) -> bool:
    return activation is nn.functional.silu or isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def _gate_of(m: Any) -> Callable[[Site, Tensor, Tensor], Tensor]:
    """What experts make of gates and values. Raises Unsupported for a function that is none of those known."""
    own = getattr(m, "_apply_gate", None)
    if own is None or own.__module__ == "transformers.integrations.moe":
        require(_is_silu(m.act_fn), f"the activation {m.act_fn}; only SiLU")
        return lambda site, gate, up: ops.swiglu(gate, up, name=f"{site.name}.act")
    stated = _clamped_gate(m, own)
    if stated is None:
        return lambda site, gate, up: _recorded_gate(own, site, gate, up)
    alpha, limit = stated

    def clamped(site: Site, gate: Tensor, up: Tensor) -> Tensor:
        gate = clamp(f"{site.name}.gate_clamp", gate, None, limit)
        up = clamp(f"{site.name}.up_clamp", up, -limit, limit)
        gate = ops.scale(gate, alpha, name=f"{site.name}.alpha")
        up = ops.scale(ops.shift(up, 1.0, name=f"{site.name}.one_more"), 1 / alpha, name=f"{site.name}.of_alpha")
        return ops.swiglu(gate, up, name=f"{site.name}.act")  # silu(a g) / a = g sigmoid(a g)

    return clamped


class Halves:
    """What a function of gates and values is given in place of both in one array, of which it may only take the halves."""

    def __init__(self, *parts: torch.Tensor) -> None:
        self.parts = parts

    def chunk(self, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Return gates and values. Raises Unsupported for other parts."""
        require((chunks, dim) == (2, -1), "its function of gates and values (_apply_gate) takes other parts than halves")
        return self.parts

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"its function of gates and values (_apply_gate) begins with {name}; only with chunk(2, dim=-1)")


class Gate(nn.Module):
    """A function of gates and values by itself."""

    def __init__(self, function: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return what experts make of both."""
        return self.function(Halves(gate, up))


def _recorded_gate(function: Callable[[Any], torch.Tensor], site: Site, gate: Tensor, up: Tensor) -> Tensor:
    """What a network's own function makes of gates and values, of which no parameter is trained."""
    examples = [torch.empty(part.shape, dtype=getattr(torch, str(part.dtype)), device="meta") for part in (gate, up)]
    assert site.record is not None, "the walk over a recording gives it"
    result: Tensor = site.record(Gate(function), examples, (gate, up), f"{site.name}.act")
    return result


def _clamped_gate(m: Any, function: Any) -> tuple[float, float] | None:
    """The factor and the limit of GPT-OSS's function of gates and values, (up + 1) gate sigmoid(alpha gate), both clamped; None for
    a function that computes something else, found by trying it."""
    alpha, limit = (getattr(m, key, getattr(m, f"swiglu_{key}", None)) for key in ("alpha", "limit"))
    if not isinstance(alpha, (int, float)) or not isinstance(limit, (int, float)) or not alpha or not limit > 0:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        both = torch.randn(64, 32, dtype=torch.float64) * limit
        gate, up = both[:, ::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
        if m.is_concatenated:
            both = torch.cat((both[:, ::2], both[:, 1::2]), -1)
        try:
            found = function(both)
        except Exception:  # whatever it raises, it is another function
            return None
        fits = found.shape == gate.shape and torch.allclose(found, (up + 1) * gate * torch.sigmoid(gate * alpha), 1e-10, 1e-12)
    return (float(alpha), float(limit)) if fits else None


def _groups(site: Site, tokens: int) -> int:
    """The samples whose tokens these are, so that samples can be cut: the batch, where it divides them."""
    batch = next((n.outputs[0].shape[0] for n in site.graph if n.operator.kind == "input" and n.outputs[0].shape), 1)
    return batch if tokens % batch == 0 else 1


def stand_in_of_result(m: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the result's shape that depends on everything that the result depends on. (Which algorithm computes
    it, and how many tokens an expert has, is known only with numbers.)"""
    result: torch.Tensor = hidden_states * (top_k_weights.sum() * sum(p.sum() for p in m.parameters()))
    return result
