"""Small networks as plain functions of JAX and as a module of Flax, beside graphs with the same names, for the tests of exported
plans. A function calls ``at(x, name)`` behind the plan's operators; that is the exported module's `constrain`, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import taskflow
from taskflow.models import LlamaConfig, MLPConfig, MoEConfig
from taskflow.models.llama import llama
from taskflow.models.mlp import mlp
from taskflow.models.moe import moe

At = Callable[[Any, str], Any]
LLAMA = LlamaConfig(batch=16, steps=16, vocabulary=64, hidden=32, inner=64, heads=4, key_heads=4, layers=2, scaling=None)
MLP = MLPConfig(batch=16, features=32, hidden=(64, 64), classes=8)
MOE = MoEConfig(batch=16, steps=8, vocabulary=64, hidden=32, inner=64, heads=4, head_size=8, layers=2, experts=8, balance=0.0)
CAPACITY = 4  # places of an expert for the 8 words of a row


def graph(name: str) -> taskflow.OperatorGraph:
    """The network's graph."""
    if name == "conv":
        return _conv_graph()
    return {"llama": lambda: llama(LLAMA), "flax": lambda: mlp(MLP), "mlp": lambda: mlp(MLP), "moe": lambda: moe(MOE)}[name]()


def weights(name: str) -> dict[str, np.ndarray]:
    """Random weights by the graph's names."""
    generator = np.random.default_rng(0)
    found = {}
    for parameter in graph(name).parameters:
        shape = parameter.shape
        scale = 0.5 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        centre = 1.0 if len(shape) == 1 and "norm" in parameter.name and parameter.name.endswith("weight") else 0.0
        found[parameter.name] = (centre + scale * generator.normal(size=shape)).astype("float32")
    return found


def batches(name: str, steps: int) -> list[dict[str, np.ndarray]]:
    """Random batches by the names of the graph's inputs."""
    generator = np.random.default_rng(1)

    def some_ignored(labels: Any) -> Any:
        """Without every fourth sample's labels, which may be all of a micro-batch, and a few others."""
        labels[generator.random(labels.shape) < 0.2] = -100
        labels[::4] = -100
        return labels

    def one() -> dict[str, np.ndarray]:
        if name in ("mlp", "flax"):
            features = generator.normal(size=(MLP.batch, MLP.features)).astype("float32")
            return {"features": features, "labels": some_ignored(generator.integers(0, MLP.classes, MLP.batch))}
        if name == "conv":
            x = generator.normal(size=(8, 4, 16, 16)).astype("float32")
            return {"x": x, "labels": some_ignored(generator.integers(0, 8, 8))}
        c: Any = LLAMA if name == "llama" else MOE
        tokens = generator.integers(0, c.vocabulary, (c.batch, c.steps + 1))
        return {"tokens": tokens[:, :-1], "targets": some_ignored(tokens[:, 1:].copy())}

    return [one() for _ in range(steps)]


def cross_entropy(scores: Any, labels: Any) -> Any:
    """Mean over the labels that are not -100; nan if there are none."""
    own = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    return -jnp.where(labels == -100, 0, own).sum() / (labels != -100).sum()


def counted(batch: Any) -> Any:
    """The number of labels of a batch that count."""
    return (batch["targets" if "targets" in batch else "labels"] != -100).sum()


def mlp_loss(at: At, p: Any, batch: Any) -> Any:
    x = batch["features"]
    for number in (1, 2):
        x = at(jax.nn.relu(at(x @ p[f"fc{number}"]["weight"].T + p[f"fc{number}"]["bias"], f"fc{number}")), f"relu{number}")
    return cross_entropy(at(x @ p["fc3"]["weight"].T + p["fc3"]["bias"], "fc3"), batch["labels"])


def _rms(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + LLAMA.eps) * weight


def _rotary(x: Any) -> Any:
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * LLAMA.theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / np.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


def llama_loss(at: At, p: Any, batch: Any) -> Any:
    x = at(p["embed_tokens"]["weight"][batch["tokens"]], "embed_tokens")
    for i in range(LLAMA.layers):
        name, w = f"layers.{i}", p["layers"][str(i)]
        y = at(_rms(x, w["input_layernorm"]["weight"]), f"{name}.input_layernorm")

        def heads(which: str, y: Any = y, w: Any = w, name: str = name) -> Any:
            flat = at(y @ w["self_attn"][f"{which}_proj"]["weight"].T, f"{name}.self_attn.{which}_proj")
            return at(flat.reshape(*flat.shape[:2], LLAMA.heads, -1), f"{name}.self_attn.{which}_heads")

        q, k = (at(_rotary(heads(which)), f"{name}.self_attn.{which}_rotary") for which in "qk")
        y = at(_attention(q, k, heads("v")), f"{name}.self_attn.attention")
        y = at(y.reshape(x.shape), f"{name}.self_attn.joined")
        x = at(x + at(y @ w["self_attn"]["o_proj"]["weight"].T, f"{name}.self_attn.o_proj"), f"{name}.self_attn.add")
        y = at(_rms(x, w["post_attention_layernorm"]["weight"]), f"{name}.post_attention_layernorm")
        gate, up = (at(y @ w["mlp"][f"{which}_proj"]["weight"].T, f"{name}.mlp.{which}_proj") for which in ("gate", "up"))
        y = at(at(jax.nn.silu(gate) * up, f"{name}.mlp.act") @ w["mlp"]["down_proj"]["weight"].T, f"{name}.mlp.down_proj")
        x = at(x + y, f"{name}.mlp.add")
    x = at(_rms(x, p["norm"]["weight"]), "norm")
    return cross_entropy(at(x @ p["lm_head"]["weight"].T, "lm_head"), batch["targets"])


def _norm(x: Any, w: Any) -> Any:
    return jax.nn.standardize(x, epsilon=1e-5) * w["weight"] + w["bias"]


def moe_loss(at: At, p: Any, batch: Any) -> Any:
    """The graph's layers, but each word goes to its two best experts for certain, up to their places."""
    table = p["embedding"]["weight"]
    x = at(at(at(table[batch["tokens"]], "embedding") * MOE.hidden**0.5, "scale"), "positions")
    for i in range(MOE.layers):
        name, w = f"layers.{i}", p["layers"][str(i)]
        y, a = at(_norm(x, w["norm1"]), f"{name}.norm1"), w["attention"]

        def heads(which: str, y: Any = y, a: Any = a, name: str = f"{name}.attention") -> Any:
            flat = at(y @ a[which]["weight"].T, f"{name}.{which}")
            return at(flat.reshape(*flat.shape[:2], MOE.heads, -1), f"{name}.{which}_heads")

        y = at(_attention(heads("q"), heads("k"), heads("v")), f"{name}.attention.attend")
        y = at(y.reshape(*x.shape[:2], -1), f"{name}.attention.joined")
        x = at(x + at(y @ a["o"]["weight"].T, f"{name}.attention.o"), f"{name}.attention.add")
        y = at(_norm(x, w["norm2"]), f"{name}.norm2")
        if i % 2:
            made = _experts(at, y, w["moe"], f"{name}.moe")
        else:
            made = at(jax.nn.relu(at(y @ w["ffn"]["wi"]["weight"].T, f"{name}.ffn.wi")), f"{name}.ffn.act")
            made = at(made @ w["ffn"]["wo"]["weight"].T, f"{name}.ffn.wo")
        x = at(x + made, f"{name}.add")
    x = at(_norm(x, p["norm"]), "norm")
    return cross_entropy(at(x @ table.T, "softmax"), batch["targets"])


def _experts(at: At, x: Any, w: Any, name: str) -> Any:
    gates = jax.nn.softmax(at(x @ w["wg"]["weight"].T, f"{name}.wg"))
    best, which = jax.lax.top_k(gates, 2)
    chosen = jax.nn.one_hot(which, MOE.experts)  # (G, S, 2, E)
    ordered = chosen.swapaxes(1, 2).reshape(x.shape[0], -1, MOE.experts)  # first choices first
    place = ((jnp.cumsum(ordered, 1) - 1) * ordered).sum(-1).reshape(x.shape[0], 2, -1).swapaxes(1, 2)
    combine = jnp.einsum("gsk,gske,gskc->gsec", best / best.sum(-1, keepdims=True), chosen, jax.nn.one_hot(place, CAPACITY))
    sent = at(jnp.einsum("gsec,gsm->gecm", (combine > 0).astype(x.dtype), x), f"{name}.dispatch")
    made = at(jax.nn.relu(at(jnp.einsum("gecm,ehm->gech", sent, w["wi"]["weight"]), f"{name}.wi")), f"{name}.act")
    made = at(jnp.einsum("gech,emh->gecm", made, w["wo"]["weight"]), f"{name}.wo")
    return at(jnp.einsum("gsec,gecm->gsm", combine, made), f"{name}.combine")


def flax_module() -> Any:
    """The same network as `mlp` as a module of flax.linen."""
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for number, width in enumerate(MLP.hidden, 1):
                x = nn.relu(nn.Dense(width, name=f"fc{number}")(x))
            return nn.Dense(MLP.classes, name="fc3")(x)

    return Network()


def _conv_graph() -> taskflow.OperatorGraph:
    found = taskflow.OperatorGraph(name="conv")
    x, labels = taskflow.input(found, (8, 4, 16, 16), name="x"), taskflow.input(found, (8,), "int64", name="labels")
    for number, channels in enumerate((8, 8), 1):
        x = taskflow.relu(taskflow.conv2d(x, channels, 3, padding=1, name=f"conv{number}"), name=f"relu{number}")
    x = taskflow.reshape(x, (8, 8 * 256), name="flat")
    found.minimize(taskflow.cross_entropy(taskflow.linear(x, 8, name="fc"), labels, name="loss"))
    return found


def conv_loss(at: At, p: Any, batch: Any) -> Any:
    x = batch["x"]
    for number in (1, 2):
        w = p[f"conv{number}"]
        x = jax.lax.conv_general_dilated(x, w["weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = at(jax.nn.relu(at(x + w["bias"][:, None, None], f"conv{number}")), f"relu{number}")
    x = at(x.reshape(x.shape[0], -1), "flat")
    return cross_entropy(at(x @ p["fc"]["weight"].T + p["fc"]["bias"], "fc"), batch["labels"])


LOSSES: dict[str, Callable[[At, Any, Any], Any]] = {"mlp": mlp_loss, "llama": llama_loss, "moe": moe_loss, "conv": conv_loss}


def params_of(name: str, given: dict[str, np.ndarray]) -> Any:
    """The weights as nested tables; for Flax as its module has them."""
    if name == "flax":
        layers = {key.rpartition(".")[0] for key in given}
        return {"params": {
            layer: {"kernel": jnp.array(given[f"{layer}.weight"].T), "bias": jnp.array(given[f"{layer}.bias"])} for layer in layers
        }}
    found: dict[str, Any] = {}
    for key, value in given.items():
        *path, last = key.split(".")
        at = found
        for part in path:
            at = at.setdefault(part, {})
        at[last] = jnp.array(value)
    return found
