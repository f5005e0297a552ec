"""Small presets train as PyTorch implementations of the same networks from the same weights do."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided

from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels
from taskflow.models import build, find
from taskflow.operators.dropout import generator_key
from taskflow.operators.operator import StepState
from taskflow.operators.top_k_routing import capacity_of
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.training.data.synthetic import random_feeds

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch
torch.set_num_threads(1)  # small arrays; more threads only get in the way of one another
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
torch_networks = pytest.importorskip("torch_networks")


class Attend(nn.MultiheadAttention):
    """torch's attention under our parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, batch_first=True)
        for name in "qkv":
            setattr(self, f"{name}_proj", nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)
        del self.in_proj_weight, self.in_proj_bias

    def forward(self, x, memory, mask=None):
        projections = (self.q_proj, self.k_proj, self.v_proj)
        y, _ = F.multi_head_attention_forward(
            *(t.transpose(0, 1) for t in (x, memory, memory)), self.embed_dim, self.num_heads,
            torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]), None, None, False, 0.0,
            self.out_proj.weight, self.out_proj.bias, attn_mask=mask,
        )
        return self.norm(x + y.transpose(0, 1))


class TransformerLayer(nn.Module):
    def __init__(self, c, decoder: bool) -> None:
        super().__init__()
        self.self_attn = Attend(c.hidden, c.heads)
        if decoder:
            self.multihead_attn = Attend(c.hidden, c.heads)
        self.linear1, self.linear2 = nn.Linear(c.hidden, c.inner), nn.Linear(c.inner, c.hidden)
        self.feed_forward = nn.Module()
        self.feed_forward.norm = nn.LayerNorm(c.hidden)

    def forward(self, x, memory=None, mask=None):
        x = self.self_attn(x, x, mask)
        if memory is not None:
            x = self.multihead_attn(x, memory)
        return self.feed_forward.norm(x + self.linear2(torch.relu(self.linear1(x))))


class Transformer(nn.Module):
    def __init__(self, c) -> None:
        super().__init__()
        self.config = c
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.layers = nn.ModuleList(TransformerLayer(c, False) for _ in range(c.layers))
        self.decoder.layers = nn.ModuleList(TransformerLayer(c, True) for _ in range(c.layers))

    def start(self, words):
        c = self.config
        rates = 10000.0 ** (-torch.arange(0, c.hidden, 2, dtype=torch.float64) / c.hidden)
        angles = torch.arange(words.shape[1], dtype=torch.float64)[:, None] * rates
        waves = torch.stack((torch.sin(angles), torch.cos(angles)), 2).flatten(1)
        return self.embedding(words) * c.hidden**0.5 + waves

    def forward(self, source, target, labels):
        x, y = self.start(source), self.start(target)
        for layer in self.encoder.layers:
            x = layer(x)
        mask = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        for layer in self.decoder.layers:
            y = layer(y, x, mask)
        scores = (y @ self.embedding.weight.T).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), label_smoothing=self.config.label_smoothing)


class GPTLayer(nn.Module):
    def __init__(self, c) -> None:
        super().__init__()
        width, self.heads = c.hidden, c.heads
        self.ln_1, self.ln_2, self.attn, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), nn.Module(), nn.Module()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self.attn, name, nn.Linear(width, width))
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        y = self.ln_1(x)
        q, k, v = (getattr(self.attn, f"{name}_proj")(y).view(n, t, self.heads, -1).transpose(1, 2) for name in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width)
        x = x + self.attn.out_proj(y)
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, c) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocabulary, c.hidden), nn.Parameter(torch.empty(1, c.steps, c.hidden))
        self.h, self.ln_f = nn.ModuleList(GPTLayer(c) for _ in range(c.layers)), nn.LayerNorm(c.hidden)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe
        for layer in self.h:
            x = layer(x)
        return F.cross_entropy((self.ln_f(x) @ self.wte.weight.T).flatten(0, 1), targets.flatten())


class LlamaLayer(nn.Module):
    def __init__(self, c) -> None:
        super().__init__()
        self.config, width, each = c, c.hidden, c.hidden // c.heads
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, c.eps) for _ in range(2))
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, out in (("q", c.heads * each), ("k", c.key_heads * each), ("v", c.key_heads * each), ("o", width)):
            setattr(self.self_attn, f"{name}_proj", nn.Linear(width, out, bias=False))
        self.mlp.gate_proj, self.mlp.up_proj = (nn.Linear(width, c.inner, bias=False) for _ in range(2))
        self.mlp.down_proj = nn.Linear(c.inner, width, bias=False)

    def attend(self, x):
        c, at = self.config, self.self_attn
        n, t, width = x.shape
        each, per_group = width // c.heads, c.heads // c.key_heads
        q, k, v = (p(x).view(n, t, -1, each).transpose(1, 2) for p in (at.q_proj, at.k_proj, at.v_proj))
        q, k = turned(q, c), turned(k, c)
        k, v = (x.repeat_interleave(per_group, 1) for x in (k, v))
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if c.window is not None:
            seen = seen.triu(1 - c.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return at.o_proj(y.transpose(1, 2).reshape(n, t, width))

    def forward(self, x):
        x = x + self.attend(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


def turned(x, c):
    """Rotary positions of x (N, heads, T, D), as complex numbers."""
    half = x.shape[-1] // 2
    rates = c.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if c.scaling is not None:
        factor, low, high, context = c.scaling
        share = ((context * rates / (2 * torch.pi) - low) / (high - low)).clamp(0, 1)
        rates = rates * share + rates / factor * (1 - share)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
    y = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((y.real, y.imag), -1)


class Llama(nn.Module):
    def __init__(self, c) -> None:
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(c.vocabulary, c.hidden), nn.ModuleList(LlamaLayer(c) for _ in range(c.layers))
        self.norm, self.lm_head = nn.RMSNorm(c.hidden, c.eps), nn.Linear(c.hidden, c.vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), targets.flatten())


class Mixtral(Llama):
    def __init__(self, c) -> None:
        super().__init__(c)
        for layer in self.layers:
            del layer.mlp
            layer.block_sparse_moe = moe = nn.Module()
            moe.gate, moe.experts = nn.Linear(c.hidden, c.experts, bias=False), nn.Module()
            for name, shape in (("w1", (c.inner, c.hidden)), ("w3", (c.inner, c.hidden)), ("w2", (c.hidden, c.inner))):
                setattr(moe.experts, name, weight_of(c.experts, *shape))

    def forward(self, tokens, targets):
        """Word by word, as a loop over those that chose each expert; and the loss of the load as Switch Transformers print it."""
        c, x, balance = self.layers[0].config, self.embed_tokens(tokens), 0.0
        for layer in self.layers:
            x = x + layer.attend(layer.input_layernorm(x))
            y, moe = layer.post_attention_layernorm(x), layer.block_sparse_moe
            gates = moe.gate(y).softmax(-1)
            weights, chosen = gates.topk(c.chosen)
            weights = weights / weights.sum(-1, keepdim=True)
            made = torch.zeros_like(y)
            for e in range(c.experts):
                w1, w3, w2 = (getattr(moe.experts, name).weight[e] for name in ("w1", "w3", "w2"))
                of_all = (F.silu(y @ w1.T) * (y @ w3.T)) @ w2.T
                made = made + of_all * (weights * (chosen == e)).sum(-1, keepdim=True)
            x = x + made
            shares = F.one_hot(chosen, c.experts).to(gates.dtype).sum(2).mean(1)
            balance = balance + c.experts * (shares * gates.mean(1)).sum(-1).mean()
        scores = self.lm_head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(scores, targets.flatten()) + c.balance * balance


def weight_of(*shape: int):
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.empty(shape))
    return holder


class MoELayer(nn.Module):
    def __init__(self, c, experts: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(c.hidden), nn.LayerNorm(c.hidden), nn.Module()
        for name in "qkv":
            setattr(self.attention, name, nn.Linear(c.hidden, c.heads * c.head_size, bias=False))
        self.attention.o = nn.Linear(c.heads * c.head_size, c.hidden, bias=False)
        if experts:
            self.moe = nn.Module()
            self.moe.wg = nn.Linear(c.hidden, c.experts, bias=False)
            self.moe.wi, self.moe.wo = weight_of(c.experts, c.inner, c.hidden), weight_of(c.experts, c.hidden, c.inner)
        else:
            self.ffn = nn.Module()
            self.ffn.wi, self.ffn.wo = nn.Linear(c.hidden, c.inner, bias=False), nn.Linear(c.inner, c.hidden, bias=False)


class MoE(nn.Module):
    """GShard's layers with the masks of its Python, word by word. The random numbers are those of each word's place."""

    seed, step = 0, 0

    def __init__(self, c) -> None:
        super().__init__()
        self.config, self.embedding, self.norm = c, nn.Embedding(c.vocabulary, c.hidden), nn.LayerNorm(c.hidden)
        self.layers = nn.ModuleList(MoELayer(c, bool(i % 2)) for i in range(c.layers))

    def forward(self, tokens, targets):
        c, balance = self.config, 0.0
        rates = 10000.0 ** (-torch.arange(0, c.hidden, 2, dtype=torch.float64) / c.hidden)
        angles = torch.arange(c.steps, dtype=torch.float64)[:, None] * rates
        x = self.embedding(tokens) * c.hidden**0.5 + torch.stack((torch.sin(angles), torch.cos(angles)), 2).flatten(1)
        for i, layer in enumerate(self.layers):
            y, at = layer.norm1(x), layer.attention
            q, k, v = (p(y).unflatten(2, (c.heads, -1)).transpose(1, 2) for p in (at.q, at.k, at.v))
            x = x + at.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            y = layer.norm2(x)
            if i % 2:
                made, loss = self.experts(layer.moe, y, f"layers.{i}.moe.gating")
                balance = balance + loss
            else:
                made = layer.ffn.wo(torch.relu(layer.ffn.wi(y)))
            x = x + made
        self.step += 1
        scores = self.norm(x) @ self.embedding.weight.T
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten()) + c.balance * balance

    def experts(self, moe, x, name):
        c, (groups, tokens, _) = self.config, x.shape
        capacity = capacity_of(tokens, c.experts, c.factor)
        numbers = np.empty((groups, tokens))
        NumpyKernels().uniform(generator_key(StepState(seed=self.seed), name), self.step, numbers.shape, (0, 0), numbers)
        gates, made, balance = moe.wg(x).softmax(-1), [], 0.0
        for g in range(groups):
            best, chosen = gates[g].topk(2)
            weights = best / best.sum(-1, keepdim=True)
            taken, counts = [[] for _ in range(tokens)], [0] * c.experts
            for i in (0, 1):
                for s in range(tokens):
                    e = int(chosen[s, i])
                    if counts[e] < capacity and (not i or 2 * weights[s, i].item() > numbers[g, s]):
                        taken[s].append((e, weights[s, i]))
                    counts[e] += 1
                if not i:
                    shares = torch.tensor(counts, dtype=x.dtype) / tokens
            balance = balance + c.experts * (shares * gates[g].mean(0)).sum() / groups
            for s, found in enumerate(taken):
                said = [w * (moe.wo.weight[e] @ torch.relu(moe.wi.weight[e] @ x[g, s])) for e, w in found]
                made.append(sum(said, torch.zeros_like(x[g, s])))
        return torch.stack(made).unflatten(0, (groups, tokens)), balance


NETWORKS = {
    **torch_networks.NETWORKS, "Transformer": Transformer, "GPT-2": GPT, "Llama": Llama, "Mixtral": Mixtral, "MoE": MoE,
}
WITHOUT_DROPOUT = ("ResNet-101", "Llama", "Mixtral", "MoE")


@pytest.mark.parametrize(("name", "seed"), fast_among(
    list(product(NETWORKS, (0, 1))), [*product(set(NETWORKS) - {"Inception-v3"}, (0, 1)), ("Inception-v3", 0)],
))
def test_small_presets_train_as_torch_does(name: str, seed: int) -> None:
    sizes: dict[str, Any] = {} if name in WITHOUT_DROPOUT else {"dropout": 0.0}
    if name == "Llama" and seed:
        sizes = {"steps": 9, "window": 4, "key_blocks": 3, "scaling": (8.0, 1.0, 4.0, 16), "theta": 10.0}
    if name == "MoE" and seed:
        sizes = {"steps": 16, "factor": 0.5}  # half of all choices find a place
    steps = 4
    if name == "Inception-v3":  # its last layers have one position: over few samples, normalisation magnifies rounding
        sizes["batch"], steps = 16, 2
    config = replace(find(name)[1].small, **sizes)
    graph: OperatorGraph = build(name, preset="small", dtype="float64", **sizes)
    strategy = random_strategy(graph, 4, Random(seed)) if seed else undivided(graph)
    run = Executor(graph, strategy, SGD(0.05, momentum=0.9), seed=seed)
    net = NETWORKS[name](config).double()
    net.seed = seed
    start = {key: torch.from_numpy(value.copy()) for key, value in torch_networks.named(run.parameters())}
    assert set(start) == {key for key, _ in net.named_parameters()}
    net.load_state_dict(start, strict=False)
    update = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        batch = random_feeds(graph, step)
        loss = net(**{key: torch.from_numpy(value) for key, value in batch.items()})
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(batch) == pytest.approx(loss.item(), rel=1e-9)
    ours = dict(torch_networks.named(run.parameters()))
    for key, value in net.named_parameters():
        np.testing.assert_allclose(ours[key], value.detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=key)


LARGE = 2.0**10  # the learning rate of the one step: a weight's change is then its gradient, not rounded away beside the weight
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}
PAPERS = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")


def gradients(run: Executor, batch: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """The loss of one step and the gradients of all parameters, by PyTorch's names."""
    before = {key: value.copy() for key, value in run.parameters().items()}
    loss = run.train(batch)
    assert loss is not None
    return loss, dict(torch_networks.named({key: (before[key] - value) / LARGE for key, value in run.parameters().items()}))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", PAPERS)
def test_gradients_are_torchs_under_fifty_strategies(name: str, dtype: str) -> None:
    """Whole, and cut at random in every dimension, unevenly, on 2 to 6 processors: loss and all gradients are PyTorch's."""
    sizes: dict[str, Any] = {} if name == "ResNet-101" else {"dropout": 0.0}
    if name == "Inception-v3":  # see above
        sizes["batch"] = 16
    net = NETWORKS[name](replace(find(name)[1].small, **sizes)).to(getattr(torch, dtype))
    graph: OperatorGraph = build(name, preset="small", dtype=dtype, **sizes)
    batch = random_feeds(graph, 3)
    for seed in range(51):
        strategy = random_strategy(graph, 2 + seed % 5, Random(seed)) if seed else undivided(graph)
        run = Executor(graph, strategy, SGD(LARGE), seed=7)
        if not seed:
            start = {key: torch.from_numpy(value.copy()) for key, value in torch_networks.named(run.parameters())}
            net.load_state_dict(start, strict=False)
            expected = net(**{key: torch.from_numpy(value) for key, value in batch.items()})
            expected.backward()
            theirs = {key: value.grad.numpy() for key, value in net.named_parameters()}
            largest = max(float(np.linalg.norm(g)) for g in theirs.values())
        loss, ours = gradients(run, batch)
        assert loss == pytest.approx(expected.item(), rel=TOLERANCE[dtype])
        if (name, dtype) == ("Inception-v3", "float32"):
            # Where rounding decides a maximum or a relu, a gradient jumps: PyTorch's own in float32 is up to 3 % from its own in
            # float64, in the first layers. So all as one vector; each by itself in float64.
            off = np.sqrt(sum(np.linalg.norm(ours[key] - g) ** 2 for key, g in theirs.items()))
            assert off < TOLERANCE[dtype] * np.sqrt(sum(np.linalg.norm(g) ** 2 for g in theirs.values())), f"strategy {seed}"
            continue
        for key, gradient in theirs.items():
            # Some are zero but for rounding, such as those of biases before a normalisation: beside the largest, not themselves.
            off = float(np.linalg.norm(ours[key] - gradient)) / max(float(np.linalg.norm(gradient)), 1e-2 * largest)
            assert off < TOLERANCE[dtype], f"{key} under strategy {seed}: off by {off:.1e}"
