"""ExportedModule computes what an exported program computes, by calling functions of torch in place of its operators.

It has the parameters and buffers of the module that was exported, under the same paths, so that it is recorded, verified and
named like any module.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree

from taskflow.models.pytorch.exported.layers import COUNTER, LayerSpec, drops_nothing
from taskflow.models.pytorch.exported.program import (
    AtenProgram,
    FloatKind,
    InTraining,
    Named,
    ProgramCall,
    ProgramReader,
    shape_of,
)
from taskflow.models.pytorch.places import at_place
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import leaves, mapped

HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MODULES: WeakKeyDictionary[ExportedProgram, ExportedModule] = WeakKeyDictionary()


Sizes = tuple[int | None, ...]
Compare = Callable[[ProgramCall, Any, Any, Callable[[], Any]], Any]
"""Is given a call, the arguments of ATen's operator and what makes the call; returns what that returns."""


def _unseen(call: ProgramCall, args: Any, kwargs: Any, make: Callable[[], Any]) -> Any:
    return make()


def _fits(tensor: torch.Tensor, sizes: Sizes) -> bool:
    return len(tensor.shape) == len(sizes) and all(want in (None, have) for want, have in zip(sizes, tensor.shape))


class ExportedPart(nn.Module):
    """A submodule of the exported module. Calls that its code contained are made through it."""

    def forward(self, call: ProgramCall, run: Any, args: Any, kwargs: Any) -> Any:
        """Make one call."""
        return at_place(call.place, run, *args, **kwargs)


class ExportedModule(nn.Module):
    """Module whose ``forward`` takes the program's input tensors by their names, and returns what the exported module returned."""

    def __init__(
        self, program: AtenProgram, held: Mapping[str, str], inputs: Mapping[str, Sizes], examples: Mapping[str, torch.Tensor],
        returned: Any,
    ) -> None:
        super().__init__()
        self.program_ = program
        self.held_ = dict(held)  # names of the program's arguments: paths of parameters and buffers
        self.inputs_ = dict(inputs)  # sizes, None for those that are open
        self.examples_ = dict(examples)
        self.returned_ = returned
        self.compare_: Compare = _unseen

    def run_(self, *args: Any) -> Any:
        """Body of ``forward``."""
        values: dict[str, Any] = {name: self._at(path) for name, path in self.held_.items()}
        for (name, sizes), value in zip(self.inputs_.items(), args, strict=True):
            require(
                _fits(value, sizes),
                f"{name} was exported as {list(sizes)}, got {list(value.shape)}; export it again with an example of this shape, or "
                "with dynamic_shapes",
            )
            values[name] = value
        found = self._run(self.program_, values)
        return _pytree.tree_unflatten(list(found), self.returned_) if self.returned_ is not None else found

    def _at(self, path: str) -> torch.Tensor:
        where, _, name = path.rpartition(".")
        return getattr(self.get_submodule(where), name)  # type: ignore[no-any-return]

    def _run(self, program: AtenProgram, values: dict[str, Any]) -> Any:
        floats = next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

        def value_of(leaf: Any) -> Any:
            if isinstance(leaf, Named):
                return values[leaf.name]
            if isinstance(leaf, InTraining):
                return leaf.training if self.training else leaf.evaluation
            return floats if isinstance(leaf, FloatKind) else leaf

        for call in program.calls:
            args, kwargs = mapped(value_of, call.args), mapped(value_of, dict(call.kwargs))
            if call.block is not None:
                with nullcontext() if call.grad is None else torch.set_grad_enabled(call.grad):
                    result = self._run(call.block, dict(zip(call.block.arguments, args, strict=True)))
            else:
                given = (args, kwargs) if call.layer is None else (mapped(value_of, call.layer.args), {})
                result = self.compare_(call, args, kwargs, partial(self._called, call, *given))
            values[call.name] = result
        return mapped(value_of, program.outputs)

    def _called(self, call: ProgramCall, args: Any, kwargs: Any) -> Any:
        """Result of one call of the program. Raises Unsupported if its sizes differ from those at the export."""
        if call.layer is not None:
            result = at_place(call.place, self.get_submodule(call.layer.path), *args)
            result = (*leaves(result), None, None, None, None) if call.layer.flat else result
        else:
            part = self.get_submodule(call.path)
            within = isinstance(part, ExportedPart)
            result = part(call, call.run, args, kwargs) if within else at_place(call.place, call.run, *args, **kwargs)
        tensors = [value for value in leaves(result) if isinstance(value, torch.Tensor)]
        for tensor, sizes in zip(tensors, call.sizes):
            require(_fits(tensor, sizes), f"{call.described()} returns {list(tensor.shape)}, but was exported as {list(sizes)}")
        return result


def exported_module(exported: ExportedProgram) -> ExportedModule:
    """Return the module of a program; the same module each time. Warns if the program was exported in evaluation mode without
    its dropout. Raises ValueError for what it does not support, with the line in the exported code.
    """
    if exported not in _MODULES:
        try:
            _MODULES[exported] = _made(exported)
        except Unsupported as error:
            raise ValueError(f"from_torch: the exported program: {error}") from error
    return _MODULES[exported]


def title_of(exported: ExportedProgram) -> str:
    """Return the class name of the module that was exported, if the program has it."""
    for node in exported.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        for path, kind in [*stack.values()][:1]:
            if not path or path in ("L['self']", "L__self__"):
                return (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return "exported"


def _made(exported: ExportedProgram) -> ExportedModule:
    signature = exported.graph_signature
    held, inputs, tensors = {}, {}, {}
    fake = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    constants: dict[str, Any] = {}
    for spec in signature.input_specs:
        if spec.kind in HELD:
            held[spec.arg.name] = str(spec.target)
            tensors[str(spec.target)] = _tensor(exported, spec)
        elif spec.kind is not InputKind.USER_INPUT:
            kind = spec.kind.name.lower().replace("_", " ")
            raise Unsupported(f"its argument {spec.arg.name} is a {kind}; only tensors are read")
        elif isinstance(fake[spec.arg.name], torch.Tensor):
            inputs[spec.arg.name] = fake[spec.arg.name]
        else:
            constants[spec.arg.name] = fake[spec.arg.name]
    tensors = {name: tensors.get(name, value) for name, value in exported.state_dict.items()} | tensors  # in the module's order
    floats = next((t.dtype for t in tensors.values() if isinstance(t, nn.Parameter) and t.is_floating_point()), torch.float32)
    reader = ProgramReader(floats, held)
    program = reader.read(exported.graph_module)
    reader.require_all_known()
    program = AtenProgram(program.arguments, program.calls, _user_outputs(signature, program, reader.layers))
    for spec in reader.layers.values():
        require(
            spec.trains or not issubclass(spec.kind, nn.modules.batchnorm._BatchNorm),
            f"{spec.path} is batch normalisation in evaluation, with statistics that are not those of the batch; export the module "
            "after module.train()",
        )
    if drops_nothing(exported.graph_module):
        warnings.warn(
            "from_torch: the program was exported in evaluation mode: its training steps have no dropout. Export the module after "
            "module.train()", stacklevel=5,
        )
    sizes = {name: shape_of(tensor) for name, tensor in inputs.items()}
    module = _with_arguments(inputs)(program, held, sizes, _examples(exported, inputs), exported.call_spec.out_spec)
    _fill(module, tensors, reader.layers, [call.path for call in _all_calls(program)])
    for spec in reader.layers.values():
        module.get_submodule(spec.path).train(spec.trains)
    return module


def _all_calls(program: AtenProgram) -> list[ProgramCall]:
    return [inner for call in program.calls for inner in (call, *(_all_calls(call.block) if call.block else ()))]


def _tensor(exported: ExportedProgram, spec: Any) -> Any:
    name = str(spec.target)
    found = exported.state_dict.get(name, exported.constants.get(name))
    require(isinstance(found, torch.Tensor), f"it has no tensor {name}")
    return found


def _user_outputs(signature: Any, program: AtenProgram, layers: Mapping[str, LayerSpec]) -> Any:
    """The outputs that the module returned. Buffers that layers update by themselves are left out."""
    found = []
    for spec, value in zip(signature.output_specs, program.outputs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            found.append(value)
            continue
        path = str(spec.target)
        of_layer = path.rpartition(".")[0] in layers or path.endswith(f".{COUNTER}")
        require(of_layer, f"it changes {path} from call to call; a graph has no such state: return it instead")
    return tuple(found)


def _examples(exported: ExportedProgram, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors without data, in the shapes that the program was exported with."""
    given = [leaf for leaf in _pytree.tree_leaves(exported.example_inputs) if isinstance(leaf, torch.Tensor)]
    found = {}
    for number, (name, tensor) in enumerate(inputs.items()):
        example = given[number] if len(given) == len(inputs) and given[number].ndim == tensor.ndim else tensor
        shape = [size if type(size) is int else _known(name, other) for size, other in zip(tensor.shape, example.shape)]
        found[name] = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return found


def _known(name: str, size: Any) -> int:
    found = size if type(size) is int else size.node.hint
    if found is None:
        raise Unsupported(f"the shape of {name} is open, and it has no example of it; give examples to from_torch")
    return int(found)


def _with_arguments(inputs: Mapping[str, Any]) -> type[ExportedModule]:
    """A class whose forward has these arguments."""

    def forward(self: ExportedModule, *args: Any, **kwargs: Any) -> Any:
        return self.run_(*forward.__signature__.bind(self, *args, **kwargs).args[1:])  # type: ignore[attr-defined]

    names = ("self", *inputs)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return type("ExportedModule", (ExportedModule,), {"forward": forward, "__module__": __name__})


def _fill(module: ExportedModule, tensors: Mapping[str, Any], layers: Mapping[str, LayerSpec], paths: Sequence[str]) -> None:
    """Give a module its submodules, with their layers, parameters and buffers. Names that share memory get one parameter."""
    whole: dict[Any, torch.Tensor] = {}
    for path in (*(name.rpartition(".")[0] for name in tensors), *layers, *paths):
        _part(module, path, layers)
    for name, tensor in tensors.items():
        where, _, last = name.rpartition(".")
        part = module.get_submodule(where)
        key = id(tensor) if tensor.is_meta else (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        tensor = whole.setdefault(key, tensor) if tensor.numel() else tensor
        if isinstance(tensor, nn.Parameter) or last in part._buffers:
            setattr(part, last, tensor)  # an LSTM has a list of its arrays, too
        else:
            part.register_buffer(last, tensor)


def _part(module: ExportedModule, path: str, layers: Mapping[str, LayerSpec]) -> None:
    at: nn.Module = module
    walked = ""
    for name in path.split(".") if path else ():
        walked = f"{walked}.{name}" if walked else name
        if name not in at._modules:
            spec = layers.get(walked)
            with torch.device("meta"):
                at.add_module(name, ExportedPart() if spec is None else spec.kind(**spec.options))
        at = at._modules[name]  # type: ignore[assignment]
