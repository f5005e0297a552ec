"""Which networks of Hugging Face and timm import, and whether they compute what PyTorch computes: loss and gradients of a step.

    python benchmarks/imports.py                     # the table of docs/benchmarks.md: recorded, and by torch.export
    python benchmarks/imports.py --networks Llama T5
    python benchmarks/imports.py --large             # sizes that people train, without weights: seconds and memory
    python benchmarks/imports.py --timm              # timm's networks for images (pip install timm torchvision)
    python benchmarks/imports.py --diffusers         # transformers and UNets of diffusers (pip install diffusers); also --large

With --json a line of JSON for each row. Configurations are in huggingface_networks.py; weights are random. Needs the extra hf.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import taskflow
from taskflow.checkpoint import load_weights
from taskflow.models.huggingface import examples_for, from_config, module_of
from taskflow.models.huggingface.beside import beside_words
from taskflow.models.huggingface.patches import BY_SPANS
from taskflow.models.huggingface.replaced import missing_result, returning_none, without_random_parts
from taskflow.models.pytorch import from_torch, trial, weights_of
from taskflow.models.pytorch.draws import SameDraws
from taskflow.models.pytorch.dropping import probability_name
from taskflow.models.pytorch.exported import why_not_exported
from taskflow.models.pytorch.steps import mapped, named_leaves


def beside(name: str) -> Any:
    """A module of this folder, which is not on the path: transformers would take kernels.py for the package kernels."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parent / f"{name}.py")
    assert spec is not None and spec.loader is not None, name
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NETWORKS = beside("huggingface_networks")
CONFIGS: dict[str, dict[str, Any]] = NETWORKS.CONFIGS
BATCH, STEPS = 4, 32
SOUND = 8_000  # numbers of a wave beside a text
RATE = 2.0**30  # of learning: what a weight was is nothing beside its gradient then, which shows to all digits
PADDED = ("GPT-2", "Llama", "Mistral, window 8", "Mixtral", "Qwen2", "BERT", "T5")  # again with an attention_mask


class Compared(NamedTuple):
    """An import beside PyTorch. ``seconds``: of the import, with verification (and with torch.export). ``loss``, ``gradients``:
    how far those of a step in float32 are off PyTorch's in double precision, relatively (the largest difference of any element,
    over the largest gradient). ``rounding``: how far PyTorch's own gradients in float32 are off; 0 where a module's code has no
    other type, and its gradients in float32 are compared."""

    graph: taskflow.OperatorGraph
    seconds: float
    loss: float
    gradients: float
    rounding: float


def network(of: str | dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A network by its name or configuration, in training and without dropout, and examples of its arguments."""
    if isinstance(of, str) and of in (networks := beside("diffusers_networks")).DIFFUSERS:
        module, keywords = networks.diffusers_module(of, BATCH)
        return undropped(module), keywords
    if isinstance(of, str) and of not in CONFIGS:
        module, keywords = beside("timm_networks").timm_module(of)
        return undropped(module), keywords
    module = without_dropout(CONFIGS[of] if isinstance(of, str) else of)
    _, keywords = examples_for(module, BATCH, None if module.main_input_name == "pixel_values" else STEPS)
    if "decoder_input_ids" in keywords and "input_values" in keywords:  # steps are of the text; the sound is 10 s
        keywords["input_values"] = keywords["input_values"][:, :SOUND]
    return module, keywords | (beside_words(module, BATCH) if "input_ids" in keywords else {})


def compared(of: str | dict[str, Any], masked: bool = False, exported: bool = False) -> Compared:
    """Import a network (by its name or configuration), recorded or ``exported``, and train it a step beside PyTorch. ``masked``:
    with an attention_mask."""
    module, keywords = network(of)
    try:
        return _compared(module, keywords, masked, exported)
    except ValueError as error:
        if (name := missing_result(error)) is None:
            raise
        with returning_none(name):
            return _compared(module, keywords, masked, exported)


def _compared(module: Any, keywords: dict[str, Any], masked: bool, exported: bool) -> Compared:
    import torch

    numbers = torch.Generator().manual_seed(1)
    keywords = mapped(partial(_drawn, numbers), keywords)
    if masked:
        lengths = torch.tensor([STEPS - 5 * i for i in range(BATCH)])
        keywords["attention_mask"] = (torch.arange(STEPS)[None] < lengths[:, None]).long()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = torch.export.export(module, (), keywords) if exported else module  # which has the module's own parameters
        graph = from_torch(imported) if exported else from_torch(module, keywords=keywords)
    seconds = time.perf_counter() - start
    if any(node.operator.kind == "noise" for node in graph):
        trial.without_dropout(graph)
    _place_images(graph, keywords)
    exact, given = in_double(module), mapped(_in_double, keywords)
    logits = _logits(module, keywords)
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=numbers)
    _trained(module, keywords, labels)
    try:
        loss = _trained(exact, given, labels)
    except RuntimeError:  # its code has no other type than float32
        loss = float("nan")
    if not np.isfinite(loss):  # or gives NaN in another one
        exact, loss = module, _trained(copy.deepcopy(module), keywords, labels)
    gradients = {name: _gradient(parameter).double() for name, parameter in exact.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    rounding = max(
        float((_gradient(parameter) - gradients[name]).abs().max()) for name, parameter in module.named_parameters()
    ) / largest
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=RATE))
    before = weights_of(imported)
    load_weights(run, before)
    tensors = {name: value for key, part in keywords.items() for name, value in named_leaves(key, part)}
    feeds = {node.name: tensors[node.name].numpy() for node in graph if node.operator.kind == "input" and node.name in tensors}
    ours = run.train(feeds | {"labels": labels.numpy()})
    after = run.weights() or {}
    trained = {parameter.name for parameter in graph.parameters}
    found = {name: (np.array(before[name]) - after[name].astype(np.float64)) / RATE for name in trained}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(gradients[name])
    theirs = weights_of(imported)
    off = max(float(np.abs(found[name] - theirs[name]).max()) for name in trained)
    return Compared(graph, seconds, abs(ours - loss) / abs(loss), off / largest, rounding)


def _drawn(numbers: Any, value: Any) -> Any:
    """Random numbers of an example's shape and kind; truth values, and what is no tensor, as they are."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool:
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, generator=numbers)
    return torch.randint(3, 200, value.shape, generator=numbers)


def _in_double(value: Any) -> Any:
    import torch

    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def in_double(module: Any) -> Any:
    """A copy of a module in double precision, in which experts go one by one: PyTorch's product of groups has no such type."""
    exact = copy.deepcopy(module).double()
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")
    tower = getattr(exact.config, "vision_config", None) if hasattr(exact, "config") else None
    if getattr(tower, "_attn_implementation", None) == BY_SPANS:  # transformers' own, image by image
        tower._attn_implementation = "sdpa"
    return exact


def _logits(module: Any, keywords: dict[str, Any]) -> Any:
    """What a module returns as scores."""
    import torch

    with SameDraws():
        returned = module(**keywords)
    return returned if isinstance(returned, torch.Tensor) else getattr(returned, "logits", returned[0])


def _trained(module: Any, keywords: dict[str, Any], labels: Any) -> float:
    """The loss of a module, whose parameters have its gradients then."""
    import torch

    logits = _logits(module, keywords)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    return loss.item()


def _gradient(parameter: Any) -> Any:
    """The gradient of a parameter, of zeros where the loss does not depend on it."""
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _place_images(graph: Any, keywords: dict[str, Any]) -> None:
    """Give each sample as many of an image's tokens as the image has rows, at places of its own."""
    import torch

    numbers = torch.Generator().manual_seed(2)
    for node in graph:
        if node.operator.kind == "masked_scatter":
            tokens, token, rows = keywords[node.inputs[1].name], node.operator.token, node.inputs[2].shape[1]
            tokens[tokens == token] = 3
            for sample in tokens:
                sample[torch.randperm(len(sample), generator=numbers)[:rows]] = token


def without_dropout(config: dict[str, Any]) -> Any:
    """The module of a config with random weights, in training, without dropout, whose random numbers are not PyTorch's."""
    import torch

    torch.manual_seed(0)
    module = module_of(config, weights=True).train()
    without_random_parts(module)
    return undropped(module)


def undropped(module: Any) -> Any:
    """The module without dropout."""
    for part in module.modules():
        if (name := probability_name(part)) is not None:
            setattr(part, name, 0.0)
    for key in ("attention_dropout", "attn_pdrop", "dropout_rate", "attention_probs_dropout_prob"):
        for part in (module, *module.modules()):
            if hasattr(getattr(part, "config", None), key):
                setattr(part.config, key, 0.0)
    for part in module.modules():
        for key in ("attention_dropout", "attn_dropout", "activation_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)
    return module


def row(name: str, masked: bool, exported: bool) -> dict[str, Any]:
    """A network in one of the two ways, as it is written with --json: figures, or why it is refused."""
    said: dict[str, Any] = {"network": name, "attention_mask": masked, "by": "torch.export" if exported else "recording"}
    try:
        found = compared(name, masked, exported)
    except Exception as error:  # of torch.export: of any kind
        return said | {"refused": " ".join(str(why_not_exported(error) or error).split())}
    return said | {
        "operators": len(found.graph), "parameters": found.graph.parameter_count, "import_seconds": found.seconds,
        "loss_off": found.loss, "gradients_off": found.gradients,
        "rounding_of_pytorch": found.rounding,
    }


def figures(found: dict[str, Any]) -> list[str]:
    """A row's cells: operators, seconds, differences (in brackets PyTorch's own)."""
    if "refused" in found:
        return ["refused", "", "", ""]
    off = f"{found['gradients_off']:.1e} ({found['rounding_of_pytorch']:.1e})"
    return [str(found["operators"]), f"{found['import_seconds']:.1f}", f"{found['loss_off']:.1e}", off]


def small(names: Sequence[str], as_json: bool, ways: Sequence[bool] = (False, True)) -> None:
    """Print the table of networks, equal to PyTorch or refused, and below it why. ``ways``: recorded (False), exported (True)."""
    refused = []
    if not as_json:
        each = ["exported: " * exported + "operators | import s | loss | gradients" for exported in ways]
        print(f"| network | parameters | {' | '.join(each)} |")
        print("|---" * (2 + 4 * len(ways)) + "|")
    rows = [(name, False) for name in names] + [(name, True) for name in names if name in PADDED]
    for name, masked in rows:
        both = [row(name, masked, exported) for exported in ways]
        title = f"{name}, attention_mask" if masked else name
        refused += [(f"{title}, {found['by']}", found["refused"]) for found in both if "refused" in found]
        if as_json:
            print("\n".join(map(json.dumps, both)), flush=True)
            continue
        count = next((f"{found['parameters']:,}" for found in both if "parameters" in found), "")
        print("| " + " | ".join([title, count, *(cell for found in both for cell in figures(found))]) + " |", flush=True)
    for title, why in () if as_json else refused:
        print(f"\n{title}: {why}")


def large(as_json: bool, of_diffusers: bool) -> None:
    """Print the table of sizes that people train."""
    if not as_json:
        print("| network | samples x tokens | parameters | operators | import s | memory of the process, GB |")
        print("|---|---|---|---|---|---|")
    others = beside("diffusers_networks") if of_diffusers else None
    sizes = {name: (name, row[-1], 0) for name, row in others.PUBLISHED.items()} if others else NETWORKS.LARGE
    for name, (config, batch, steps) in sizes.items():
        start = time.perf_counter()
        if others:
            module, keywords = others.published(name)
            graph = from_torch(module, keywords=keywords, loss="mse_loss", verify=False)
        else:
            graph = from_config(config, batch, steps or None)
        seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        if as_json:
            said = {"network": name, "samples": batch, "tokens": steps or None, "parameters": graph.parameter_count}
            print(json.dumps(said | {"operators": len(graph), "import_seconds": seconds, "peak_GB": peak}), flush=True)
            continue
        print(
            f"| {name} | {batch} x {steps or 'image'} | {graph.parameter_count / 1e9:.2f} G | {len(graph):,} | {seconds:.1f} "
            f"| {peak:.2f} |", flush=True,
        )


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    of_timm = beside("timm_networks").TIMM
    of_diffusers = beside("diffusers_networks").DIFFUSERS
    every = [*CONFIGS, *of_timm, *of_diffusers]
    parser.add_argument("--networks", nargs="+", choices=every, metavar="NAME", help="some of them")
    parser.add_argument("--timm", action="store_true", help="timm's networks")
    parser.add_argument("--diffusers", action="store_true", help="networks of diffusers, by recording")
    parser.add_argument("--recorded", action="store_true", help="by recording alone")
    parser.add_argument("--large", action="store_true", help="networks of today's sizes, without weights")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent  # whose kernels.py transformers would take for the package kernels
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    if options.large:
        large(options.json, options.diffusers)
    else:
        names = options.networks or list(of_timm if options.timm else of_diffusers if options.diffusers else CONFIGS)
        small(names, options.json, (False,) if options.recorded or options.diffusers else (False, True))


if __name__ == "__main__":
    main()
