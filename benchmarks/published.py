"""Predicted against published training speeds: the presets' analytic costs beside what others measured on such GPUs.

    python benchmarks/published.py [--source tensorflow --source nvidia --source megatron] [--most 64] [--json]

Images a second of data parallelism (synthetic data, a fixed batch a GPU), predicted with the machine presets, for
the published numbers of GPUs; and the same for more GPUs, relative to one: how the speed scales. Of decoders,
TFLOP/s that each GPU does. Published figures:

- tensorflow: "Benchmarks" in TensorFlow's performance guide, May 2017 (tensorflow.org/performance/benchmarks, source in
  its repository, tensorflow/docs_src/performance/benchmarks.md; CUDA 8, cuDNN 5.1): P100 in a DGX-1, K80 in Amazon EC2's
  p2.8xlarge (8 GPUs a node there, 4 in our presets), float32. Beside preset k80, whose GPUs run at their base clock,
  k80-peak, which has the boost clock and the vendor's rates of links.
- nvidia: NVIDIA's DeepLearningExamples, PyTorch ResNet-50 v1.5 on a DGX A100 of 80 GB GPUs (its README, container 21.03),
  batch 256 a GPU, TF32: products and convolutions on tensor cores at 156 TFLOP/s, arrays in float32.
- megatron: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (arXiv 2104.04473),
  table 1, the rows without pipelines: GPT with 2,048 words of context on DGX A100 nodes, float16, tensor parallelism within a node
  and data parallelism between, as our mapper `megatron` has it. They compute each layer's forward pass twice, to keep less (which
  their formula counts), and take a batch in parts; we predict it at once, without the second pass (which our count leaves out).

No constant of the cost model was chosen from these figures. ``ratio`` is predicted over published: above 1, taskflow
expects a GPU to be faster than that framework made it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import exp, log
from statistics import mean

import click
from paper_results import best_sync
from several import Several

from taskflow.machine import load_machine
from taskflow.mapper import Megatron, map_graph
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.algorithms import known
from taskflow.rules import Adam

RESNET_50 = {"blocks": (3, 4, 6, 3)}
RESNET_152 = {"blocks": (3, 8, 36, 3)}


@dataclass(frozen=True, slots=True)
class Case:
    """A network as somebody measured it: images a second by number of GPUs, ``batch`` on each."""

    source: str
    machine: str
    network: str
    model: str
    sizes: dict
    batch: int
    images: dict[int, float]


P100 = (
    ("Inception-v3", "Inception-v3", {}, 64, {1: 142, 2: 284, 4: 569}),
    ("ResNet-50", "ResNet-101", RESNET_50, 64, {1: 219, 2: 422, 4: 852}),
    ("ResNet-152", "ResNet-101", RESNET_152, 64, {1: 91.8, 2: 181, 4: 356}),
    ("AlexNet", "AlexNet", {}, 512, {1: 2987, 2: 5658, 4: 10509}),
)
K80 = (
    ("Inception-v3", "Inception-v3", {}, 64, {1: 30.8, 2: 58.7, 4: 117, 8: 230, 16: 459, 32: 902, 64: 1783}),
    ("ResNet-50", "ResNet-101", RESNET_50, 64, {1: 51.5, 2: 98.0, 4: 195, 8: 384, 16: 751, 32: 1388, 64: 2744}),
    ("ResNet-152", "ResNet-101", RESNET_152, 32, {1: 19.7, 2: 37.6, 4: 74.9, 8: 149, 16: 291, 32: 565, 64: 981}),
    ("AlexNet", "AlexNet", {}, 512, {1: 684, 2: 1244, 4: 2479, 8: 4853}),
)
CASES = (
    *(Case("tensorflow", "p100-peak", *measured) for measured in P100),
    *(Case("tensorflow", machine, *measured) for machine in ("k80", "k80-peak") for measured in K80),
    Case("nvidia", "a100:tf32", "ResNet-50", "ResNet-101", RESNET_50, 256, {1: 938, 8: 7248}),
)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of attention layers as Narayanan et al. trained it: sizes, GPUs that share a layer, GPUs, sequences a step, and
    10^12 operations a second that each GPU did."""

    billions: float
    heads: int
    hidden: int
    layers: int
    shared_by: int
    devices: int
    batch: int
    published: float
    steps: int = 2048
    vocabulary: int = 51_200

    def flops(self) -> float:
        """Of a step, by their formula (3) without the second forward pass: three passes of each layer, in which every weight takes
        two operations a word."""
        h, layers = self.hidden, self.layers
        whole = 1 + self.steps / (6 * h) + self.vocabulary / (12 * layers * h)
        return 72 * self.batch * self.steps * layers * h**2 * whole


DECODERS = (
    Decoder(1.7, 24, 2304, 24, 1, 32, 512, 137),
    Decoder(3.6, 32, 3072, 30, 2, 64, 512, 138),
    Decoder(7.5, 32, 4096, 36, 4, 128, 512, 142),
    Decoder(18.4, 48, 6144, 40, 8, 256, 1024, 135),
)


def decoder_row(case: Decoder) -> dict:
    """What is predicted for Megatron's plan, with weights synchronised in the way that is fastest."""
    graph = build(
        "GPT-2", batch=case.batch, steps=case.steps, vocabulary=case.vocabulary, hidden=case.hidden, heads=case.heads,
        layers=case.layers, dtype="float16",
    )
    cluster = load_machine("a100", case.devices)
    evaluator = make_evaluator(graph, cluster, rule=Adam())
    seconds = evaluator.set(best_sync(evaluator, map_graph(Megatron(case.shared_by), graph, cluster))[0])
    ours = case.flops() / seconds / case.devices / 1e12
    return {
        "source": "megatron", "machine": "a100", "network": f"GPT, {case.billions} billion", "devices": case.devices,
        "parameters": graph.parameter_count, "tensor_parallel": case.shared_by, "batch": case.batch,
        "iteration_seconds": seconds, "teraflops_per_device": ours, "published_teraflops_per_device": case.published,
        "ratio": ours / case.published,
    }


def predicted(case: Case, devices: int) -> float:
    """Images a second of data parallelism, synchronised in the way that is fastest."""
    graph, cluster = build(case.model, case.batch * devices, devices, **case.sizes), load_machine(case.machine, devices)
    evaluator = make_evaluator(graph, cluster)
    data = next(plan for plan in known(graph, cluster) if plan.name == "data")
    return case.batch * devices / evaluator.set(best_sync(evaluator, data)[0] if devices > 1 else data)


def compare(case: Case, most: int) -> list[dict]:
    """A row for each number of GPUs up to ``most``."""
    found: list[dict] = []
    for devices, published in case.images.items():
        if devices > most:
            break
        ours = predicted(case, devices)
        alone = found[0] if found else {"images_per_second": ours, "published_images_per_second": published}
        found.append({
            "source": case.source, "machine": case.machine, "network": case.network, "devices": devices,
            "batch_per_device": case.batch, "images_per_second": ours, "published_images_per_second": published,
            "ratio": ours / published, "scaling": ours / alone["images_per_second"],
            "published_scaling": published / alone["published_images_per_second"],
        })  # fmt: skip
    return found


def summary(rows: list[dict]) -> dict:
    """Of one GPU: the geometric mean of the ratios and of their distances from 1, by machine; of more: how far scaling is off."""
    found = {}
    for machine in dict.fromkeys(row["machine"] for row in rows):
        ones = [log(row["ratio"]) for row in rows if row["machine"] == machine and row["devices"] == 1]
        more = [row for row in rows if row["machine"] == machine and row["devices"] > 1]
        found[machine] = {
            "ratio": exp(mean(ones)), "off_by": exp(mean(map(abs, ones))),
            "scaling_off_by": max((abs(row["scaling"] / row["published_scaling"] - 1) for row in more), default=0.0),
        }
    return found


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--source", "sources", multiple=True, type=click.Choice(["tensorflow", "nvidia", "megatron"]), help="Default: all.")
@click.option("--most", default=16, show_default=True, help="The most GPUs to predict for.")
@click.option("--json", "as_json", is_flag=True)
def main(sources: tuple[str, ...], most: int, as_json: bool) -> None:
    rows: list[dict] = []
    for case in CASES:
        if sources and case.source not in sources:
            continue
        for row in compare(case, most):
            rows.append(row)
            click.echo(
                f"{row['machine']:<10}{row['network']:<14}{row['devices']:>3}  {row['images_per_second']:>8.0f} images/s, published"
                f" {row['published_images_per_second']:>6.0f}: {row['ratio']:.2f}; scaling {row['scaling']:.2f},"
                f" published {row['published_scaling']:.2f}", err=as_json,
            )  # fmt: skip
    totals = summary(rows)
    for case in DECODERS:
        if case.devices <= most and (not sources or "megatron" in sources):
            rows.append(row := decoder_row(case))
            click.echo(
                f"{row['machine']:<10}{row['network']:<20}{row['devices']:>4}, layers shared by {case.shared_by}: "
                f"{row['teraflops_per_device']:.0f} TFLOP/s a GPU, published {case.published:.0f}: {row['ratio']:.2f}", err=as_json,
            )  # fmt: skip
    for machine, total in totals.items():
        click.echo(
            f"{machine}: one GPU predicted {total['ratio']:.2f} times as fast in the mean, off by a factor of"
            f" {total['off_by']:.2f}; scaling off by {total['scaling_off_by']:.0%} at most", err=as_json,
        )
    if as_json:
        click.echo(json.dumps({"benchmark": "published", "rows": rows, "machines": totals}))


if __name__ == "__main__":
    main()
