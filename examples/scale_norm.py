"""An operator of your own, in one file: scale normalisation, which taskflow does not have, cut like all others.

    python examples/scale_norm.py --processors 3               # three virtual processors in one process
    mpirun -n 4 python examples/scale_norm.py --mapper random  # four ranks, every operator cut and placed at random

It trains a small network with it, once whole and once in pieces, and says whether the losses are the same.
docs/guide/operators.md explains each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import click
import numpy as np

import taskflow
from taskflow.operators.operator import (
    Call,
    Dim,
    Example,
    Init,
    Keeps,
    Operator,
    Reads,
    Spec,
    WeightSpec,
    register,
    sample_and_attributes,
    takes,
)
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("scale_norm")
class ScaleNorm(Operator):
    """x (N, ..., C), weight (1) -> y = weight x / sqrt(sum of x^2 over C + eps) (Nguyen and Salazar, arXiv 1910.05895). C cannot
    be cut, all other dimensions can; each piece then has a part of the weight's gradient."""

    eps: float
    kept = Keeps(outputs=False)  # so that the output's memory is free as soon as its readers are done
    flops_per_element = 4

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("scale_norm", inputs, 1)
        if len(inputs[0].shape) < 2 or not inputs[0].differentiable:
            raise ValueError(f"scale_norm: input must be a float tensor (N, ..., features), got {inputs[0]}")
        return (inputs[0],)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        return (WeightSpec("weight", (1,), Init("constant", inputs[0].shape[-1] ** 0.5)),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=len(shape) - 1)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((piece,), (Rect((0,), (1,)),))

    def forward(self, call: Call) -> None:
        (x,), (weight,) = call.inputs, call.weights
        call.outputs[0][...] = x * self._inverse(x) * weight

    def backward(self, call: Call) -> None:
        (x,), (weight,), dy = call.inputs, call.weights, call.grad
        normal = x * self._inverse(x)
        if (dx := call.grad_inputs[0]) is not None:  # None: nobody needs this gradient
            dx.put(weight * self._inverse(x) * (dy - normal * (dy * normal).sum(-1, keepdims=True)))
        if (dweight := call.grad_weights[0]) is not None:
            dweight.put((dy * normal).sum())

    @classmethod
    def example(cls, random: Random) -> Example:  # what the property suite draws from
        shape = (*(random.randint(1, 4) for _ in range(random.randint(1, 3))), random.randint(2, 6))
        return Example(cls(random.uniform(0.1, 0.5)), (Spec(shape, np.dtype(np.float64)),))

    def _inverse(self, x: Any) -> Any:
        return 1 / np.sqrt((x * x).sum(-1, keepdims=True) + self.eps)


def scale_norm(input: Tensor, eps: float = 1e-5, *, name: str | None = None) -> Tensor:
    """The builder: (N, ..., C) in and out."""
    return input.graph.apply(ScaleNorm(eps), (input,), name=name)[0]


def network(samples: int = 24) -> taskflow.OperatorGraph:
    """Two dense layers with the operator between them."""
    graph = taskflow.OperatorGraph("float64", "own operator")
    x = taskflow.input(graph, (samples, 10), name="x")
    labels = taskflow.input(graph, (samples,), "int64", name="labels")
    hidden = taskflow.relu(taskflow.linear(x, 32, name="first"), name="relu")
    scores = taskflow.linear(scale_norm(hidden, name="norm"), 5, name="scores")
    graph.minimize(taskflow.cross_entropy(scores, labels, name="loss"))
    return graph


def losses(mapper: str, processors: int, transport: Any, steps: int) -> list[float | None]:
    """Of some steps under a strategy; None on all ranks but the first."""
    graph, machine = network(), taskflow.host(processors)
    strategy, chosen = taskflow.choose(mapper, graph, machine)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.5), transport=transport, machine=machine, mapper=chosen, seed=1)
    numbers = np.random.default_rng(0)
    feeds = {"x": numbers.normal(size=(24, 10)), "labels": numbers.integers(0, 5, 24)}
    return [run.train(feeds) for _ in range(steps)]


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank).")
@click.option("--mapper", default="data", show_default=True, help="Who cuts and places: a name, FILE.json or package.module:Class.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
def main(processors: int | None, mapper: str, steps: int) -> None:
    transport = taskflow.connect()
    cut = losses(mapper, processors or transport.size, transport, steps)
    whole = losses("data", 1, None, steps)  # every rank, for itself
    if transport.rank == 0:
        same = np.allclose(np.array(cut, float), np.array(whole, float), rtol=1e-10)
        click.echo(f"loss {whole[0]:.4f} -> {whole[-1]:.4f}; in pieces the same: {same}")
        if not same:
            raise SystemExit("scale_norm.py: losses differ from those of the whole operator")
    transport.close()


if __name__ == "__main__":
    main()
