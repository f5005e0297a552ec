"""Code around stages as it runs, for modules whose forward torch.fx cannot trace, such as Hugging Face's: with shapes as numbers.

The module runs once on tensors without numbers. Calls of functions, and of modules that are within one stage, become a graph of
torch.fx. What depends on no input, such as positions and masks, is in it too, so that each stage computes it for itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx

from taskflow.models.pytorch.calls import changes_an_argument, tensors_of
from taskflow.models.pytorch.experts import is_experts
from taskflow.models.pytorch.experts import stand_in_of_result as of_experts
from taskflow.models.pytorch.recorder import TorchRecorder
from taskflow.models.pytorch.recording import recorded_once
from taskflow.models.pytorch.shadow import Shadow, StandIns
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Ref, leaves, mapped, name_of

PLAIN = (bool, int, float, str, slice, type(None), type(...))


def graph_around(module: Any, examples: Sequence[Any], leaf: Callable[[Any], bool]) -> Any:
    """Return what forward computes on ``examples`` as a graph of torch.fx whose modules are those for which ``leaf`` is true. Its
    result is the first tensor that forward returns, of a mapping ``logits``. Raises Unsupported for what has no code."""
    graph = torch.fx.Graph()
    shadow = Shadow(module, StandIns(), fake=True)
    recorder = _Recorder(module, shadow, leaf, graph)
    output = recorded_once(recorder, examples)
    if isinstance(output, dict) and "logits" in output:
        output = output["logits"]
    first = next((value for value in leaves(output) if isinstance(value, Ref)), None)
    if first is None:
        raise Unsupported("forward returns no tensor")
    graph.output(recorder.node_of(recorder.steps[first.step].values[first.index]))
    return graph


class _Recorder(TorchRecorder):
    """Recorder that also writes each call as a node of a graph."""

    repeats = False

    def __init__(self, module: Any, shadow: Shadow, leaf: Callable[[Any], bool], graph: Any) -> None:
        super().__init__(module, shadow, leaf)
        self.graph = graph
        self.nodes: dict[int, Any] = {}  # tensors by identity
        self.kept: list[Any] = []  # so that no other tensor gets their identity
        self.parts = {id(parameter): path for path, parameter in module.named_parameters()}

    def node_of(self, value: Any) -> Any:
        """Return the node of a tensor. Raises Unsupported if none made it."""
        if id(value) not in self.nodes:
            path = self.shadow.paths.get(id(value)) or self.parts.get(id(value)) or self.names.get(id(value))
            if path is None:
                raise Unsupported(f"{self.inside or 'forward'} uses a tensor {list(value.shape)} that is made elsewhere")
            self._name(self.graph.get_attr(path), value)
        return self.nodes[id(value)]

    def _input(self, example: Any, name: str) -> Any:
        value = super()._input(example, name)
        if tensors_of(value):
            self._name(self.graph.placeholder(name), value)
        return value

    def _written(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        changes = kind == "function" and changes_an_argument(target, args, kwargs)
        result = super()._written(kind, target, args, kwargs, run)
        if tensors_of(result):
            if changes:
                raise Unsupported(f"{name_of(target)} in {self.inside or 'forward'} changes a tensor in place")
            self._name(self._call_of(kind, target, args, kwargs), result)
        return result

    def _run_layer(self, path: str, run: Any, args: Any, kwargs: Any) -> Any:
        for part in run.modules():
            if is_experts(part):
                part.forward = partial(of_experts, part)
        return super()._run_layer(path, run, args, kwargs)

    def _call_of(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = mapped(self._argument, args), mapped(self._argument, kwargs)
        if kind == "module":
            return self.graph.call_module(target, args, kwargs)
        name = getattr(target, "__name__", "")
        if name == "__get__":  # a property, such as x.T
            return self.graph.call_function(getattr, (args[0], name_of(target)))
        if name.startswith("__r") and hasattr(operator, f"__{name[3:]}"):  # 2 * x
            return self.graph.call_function(getattr(operator, name_of(target)[1:]), args[::-1])
        if name.startswith("__") and hasattr(operator, name) and not kwargs:
            return self.graph.call_function(getattr(operator, operator_name(name)), args)
        if getattr(torch.Tensor, name, None) is target:
            return self.graph.call_method(name, args, kwargs)
        return self.graph.call_function(target, args, kwargs)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (*PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return value
        raise Unsupported(f"{self.inside or 'forward'} hands on a {type(value).__name__}, which stages cannot give each other")

    def _name(self, node: Any, value: Any) -> None:
        """Note the node of each tensor in a result; parts of a result are nodes of their own."""
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self.kept.append(value)
            return
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (tuple, list)) else ()
        for key, part in parts:
            if tensors_of(part):
                self._name(self.graph.call_function(operator.getitem, (node, key)), part)


def operator_name(name: str) -> str:
    """Return the name that Python's module ``operator`` has for a method, without underscores: ``and_`` for ``__and__``."""
    short = name.strip("_")
    return short if hasattr(operator, short) else f"{short}_"
