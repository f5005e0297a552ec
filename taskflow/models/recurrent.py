"""A stack of LSTM layers that advances by some steps at a time, shared by the recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskflow import operators as ops
from taskflow.operators.tensor import Builder, Parameter, Tensor

State = tuple[Tensor, Tensor]  # h and c, each (N, hidden)


class SharedLayers:
    """Layers whose operators, one for each chunk of steps, share parameters. The first chunk's operator has the layer's name
    and declares the parameters, so that their names do not depend on how the steps are cut."""

    def __init__(self) -> None:
        self._parameters: dict[str, tuple[Parameter, ...]] = {}

    def __call__(self, build: Callable[..., Tensor], name: str, chunk: int, *args: object) -> Tensor:
        """``build(*args)``, an operator of layer ``name``."""
        tensor = build(*args, name=part(name, chunk), parameters=self._parameters.get(name))
        self._parameters.setdefault(name, tensor.graph.parameters_of(tensor))
        return tensor


class Layers:
    """Stack of LSTM layers, with the state that each has reached."""

    def __init__(self, shared: SharedLayers, hidden: int, start: Sequence[State], dropout: float, name: str) -> None:
        self.shared, self.hidden, self.dropout, self.name = shared, hidden, dropout, name
        self.state = list(start)

    def advance(self, x: Tensor, chunk: int, padding: tuple[Tensor, int] | None = None) -> Tensor:
        """Advance by the next chunk of steps: x (N, T, features) -> the last layer's output (N, T, hidden). ``padding``: the
        chunk's words (N, T), and the word at which states do not change."""
        for layer in range(len(self.state)):
            if self.dropout:
                x = ops.dropout(x, self.dropout, name=part(f"{self.name}.drop{layer}", chunk))
            x = self.shared(self._layer, f"{self.name}{layer}", chunk, x, layer, padding)
        return x

    def _layer(
        self, x: Tensor, layer: int, padding: tuple[Tensor, int] | None, name: str,
        parameters: Sequence[Parameter] | None,
    ) -> Tensor:
        y, h, c = ops.lstm_layer(
            x, self.hidden, self.state[layer], padding=padding, name=name, parameters=parameters
        )
        self.state[layer] = (h, c)
        return y


def part(name: str, chunk: int) -> str:
    """Return the name of a layer's operator for a chunk."""
    return f"{name}.{chunk}" if chunk else name


def chunks(tokens: Tensor, steps: int) -> tuple[Tensor, ...]:
    """Cut (N, T) tokens into parts of ``steps`` steps."""
    return (tokens,) if steps >= tokens.shape[1] else ops.split(tokens, steps, 1, name=f"{tokens.name}.split")


def zeros(graph: Builder, batch: int, hidden: int, layers: int, name: str) -> list[State]:
    """Return the states (h, c) of every layer before the first step."""
    return [
        (
            ops.state(graph, (batch, hidden), name=f"{name}.h{layer}"),
            ops.state(graph, (batch, hidden), name=f"{name}.c{layer}"),
        )
        for layer in range(layers)
    ]
