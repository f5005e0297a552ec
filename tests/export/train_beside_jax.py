"""python train_beside_jax.py RANK/MANY@ADDRESS NETWORK STEPS MODULE ...: trains a network under each exported module on eight
devices, and on one. As one of MANY processes it has a share of the devices, meets the others at ADDRESS, and computes for itself
what one device gives. Writes to MODULE.RANK.json (gloo prints on what it likes): losses of both, how far gradients and weights are
apart, the process's shards, and the program's collectives; to MODULE.RANK.npz: the first step's gradients, by the graph's names."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

PLACE, _, ADDRESS = sys.argv[1].partition("@")
RANK, MANY = map(int, PLACE.split("/"))
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // MANY}"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
import jax  # noqa: E402
import jax_networks as networks  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from hlo import collectives  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402


def whole(x: Any) -> np.ndarray:
    """An array, parts of which other processes may have."""
    return np.asarray(x if MANY == 1 else multihost_utils.process_allgather(x, tiled=True))


def apart(a: Any, b: Any) -> float:
    """The largest difference of elements, relative to the largest element of its array."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b))
    return max(float(np.abs(whole(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max()) for x, y in pairs)


def by_name(tree: Any) -> dict[str, Any]:
    """Arrays by the graph's names, and as it has them."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = ".".join(str(part.key) for part in path).removeprefix("params.")
        kernel = name.endswith(".kernel")
        found[name.replace(".kernel", ".weight")] = whole(leaf).T if kernel else whole(leaf)
    return found


def loss_with(name: str, plan: Any) -> Any:
    """The network's loss with a plan's constraints, or with none."""
    if name != "flax":
        at = plan.constrain if plan is not None else (lambda x, _: x)
        return lambda params, batch: networks.LOSSES[name](at, params, batch)
    module = networks.flax_module()

    def loss(params: Any, batch: Any) -> Any:
        if plan is None:
            return networks.cross_entropy(module.apply(params, batch["features"]), batch["labels"])
        with plan.constrained_flax():
            return networks.cross_entropy(module.apply(params, batch["features"]), batch["labels"])

    return loss


def trained(name: str, module: str, batches: list[Any]) -> dict[str, Any]:
    plan = importlib.import_module(module)
    optimizer = optax.sgd(0.1, momentum=0.9)
    alone_loss, loss = loss_with(name, None), loss_with(name, plan)
    given = networks.params_of(name, networks.weights(name))
    mesh = plan.mesh()
    params = plan.shard(given, mesh)
    state = plan.init_state(optimizer, params, mesh)
    step = plan.train_step(loss, optimizer, mesh, counted=networks.counted)
    batch = plan.shard_batch(batches[0], mesh)
    text = step.lower(params, state, batch).compile().as_text()
    value, grads = jax.jit(lambda p, b: plan.gradients(loss, p, b, on=mesh, counted=networks.counted))(params, batch)
    wanted, expected = jax.jit(jax.value_and_grad(alone_loss))(given, batches[0])
    gradients = apart(grads, expected)
    np.savez(f"{module}.{RANK}.npz", **by_name(grads))
    numbers = {device: number for number, device in enumerate(jax.devices())}  # the plan's

    def shards(tree: Any) -> dict[str, Any]:
        return {
            ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path): [
                list(leaf.shape), list(leaf.sharding.shard_shape(leaf.shape)), [numbers[s.device] for s in leaf.addressable_shards],
            ] for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.ndim
        }

    alone, alone_state = given, optimizer.init(given)

    @jax.jit
    def alone_step(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(alone_loss)(params, batch)
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state, value

    losses = []
    for batch in batches:
        params, state, ours = step(params, state, plan.shard_batch(batch, mesh))
        alone, alone_state, theirs = alone_step(alone, alone_state, batch)
        losses.append((float(ours), float(theirs)))
    return {
        "module": module, "losses": losses, "gradients": gradients, "weights": apart(params, alone),
        "params": shards(params), "state": shards(state), "collectives": collectives(text, 8),
        "first": (float(value), float(wanted)),
    }


if __name__ == "__main__":
    if MANY > 1:
        jax.distributed.initialize(ADDRESS, MANY, RANK)
    name, steps, *modules = sys.argv[2:]
    for module in modules:
        found = trained(name, module, networks.batches(name, int(steps)))
        Path(f"{module}.{RANK}.json").write_text(json.dumps(found))
