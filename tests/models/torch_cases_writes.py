"""Writes into parts of tensors: by slices with steps, along several dimensions, through views; and what is read behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_cases import CASES, Case, line, net, rows, torch


def _written(word: str, **functions: Callable[[Any, Any], Any]) -> None:
    """Cases: each function gets what two layers of 6 make of (4, 6), and writes into the first."""
    for name, function in functions.items():
        def make(function: Any = function) -> Any:
            return net(lambda self, x: function(self.a(x), self.b(x)), a=line(), b=line())

        CASES[name] = Case(name, make, rows(), word)


def _turned(h: Any, y: Any) -> Any:
    """Rotary positions as they are often written."""
    out = torch.empty_like(h)
    out[..., 0::2] = h[..., 0::2] * 0.5 - h[..., 1::2] * 2
    out[..., 1::2] = h[..., 1::2] * 0.5 + h[..., 0::2] * 2
    return out * y


def _thirds(h: Any, y: Any) -> Any:
    out = h.new_empty(4, 5)
    out[:, ::3], out[:, 1::3], out[:, 2::3] = h[:, :2], h[:, 2:4], y[:, :1]
    return out


def _unwritten_third(h: Any, y: Any) -> Any:
    out = h.new_empty(4, 6)
    out[:, ::3], out[:, 1::3] = h[:, :2], h[:, 2:4]
    return out


def _put(index: Any, value: Any) -> Callable[[Any, Any], Any]:
    def function(h: Any, y: Any) -> Any:
        h[index] = value(y) if callable(value) else value
        return h.sin()

    return function


def _through(view: Callable[[Any], Any], change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Change a view, between two other views; read all of them and the whole."""
    def function(h: Any, y: Any) -> Any:
        before = h.t()[2:]
        change(view(h), y)
        return h.sin() + before.sum(0, keepdim=True).t() + h[:, ::2].cos().sum(1, keepdim=True)

    return function


def _made(first: Callable[[], Any], *, also: Callable[[Any], Any] = lambda out: 0) -> Callable[[Any, Any], Any]:
    """Write into a fixed tensor that is made on the way."""
    def function(h: Any, y: Any) -> Any:
        out = first()
        other = also(out)
        out[:, 1:7] = h
        out[1:3, ::4] = y[:2, :2]
        return out * 2 + other

    return function


def _large(h: Any, y: Any) -> Any:
    out = torch.full((4, 300_000), 0.5, dtype=torch.float64)
    out[:, 1:7] = h
    return out[:, :20]


def _of_two(h: Any, y: Any) -> Any:
    """A view of a view, each written in turn."""
    part = h[:, 1:]
    inner = part[1:, ::2]
    inner += 1
    part.mul_(y[:, 1:])
    inner.sub_(0.5)
    h *= 2
    return h + part.sum() * inner.mean()


def _without_gradients(h: Any, y: Any) -> Any:
    with torch.no_grad():
        h[:, :2] = 0
    return h * y


def _undefined(h: Any) -> Any:
    """No numbers, through which a gradient of 0 goes back as 0."""
    return torch.log(-h.square() - 1)


def _filled(value: Any) -> Callable[[Any, Any], Any]:
    """Overwrite what is not a number, all of it."""
    return lambda h, y: (value(_undefined(h)) + 1) * y


def _overwritten(index: Any, value: float) -> Callable[[Any, Any], Any]:
    """Overwrite what is not a number, and what is infinite, in a part."""
    def function(h: Any, y: Any) -> Any:
        low = h + torch.tensor([0.0, -torch.inf, 0.0, torch.inf, -torch.inf, 0.0], dtype=h.dtype)
        both = torch.cat([low, _undefined(h)], 1)
        both[index] = value
        return both[:, :6] * y + both[:, 6:].sin()

    return function


_written(
    "equal", turned_by_steps=_turned, thirds_in_turn=_thirds,
    every_other_is_written=_put((slice(None), slice(None, None, 2)), lambda y: y[:, :3]),
    every_other_is_a_number=_put((..., slice(1, None, 2)), 0.5),
    steps_that_do_not_fit=_put((slice(None), slice(1, None, 4)), lambda y: y[:, 2:4]),
    steps_that_end_early=_put((slice(None), slice(0, 3, 2)), lambda y: y[:, 2:4]),
    a_part_of_two_dimensions=_put((slice(1, 3), slice(2, None)), lambda y: y[:2, 2:]),
    steps_of_two_dimensions=_put((slice(1, None, 2), slice(None, None, 3)), lambda y: y[:2, :2]),
    what_is_not_a_number_is_filled=_filled(lambda h: h.fill_(0.25)), what_is_not_a_number_is_zero=_filled(lambda h: h.zero_()),
    infinities_of_a_range_are_overwritten=_overwritten((slice(None), slice(1, None)), 0.5),
    infinities_of_a_view_are_zero=lambda h, y: (v := h[:, :3] + float("inf"), v.zero_(), v * y[:, :3] + h[:, 3:])[2],
    one_element=_put((2, -1), lambda y: y.mean()),
    a_column=_put((slice(None), 3), lambda y: y[:, 0]),
    a_row_of_a_part=_put((1, slice(2, 4)), lambda y: y[0, :2]),
    a_value_that_is_repeated=_put((slice(None, 2),), lambda y: y[0]),
    a_value_of_more_dimensions=_put((slice(None, 2),), lambda y: y[None, 2:]),
    changed_through_a_swap=_through(lambda h: h.t(), lambda v, y: v[1:3].mul_(2)),
    changed_through_an_order=_through(lambda h: h.reshape(4, 2, 3).permute(2, 0, 1), lambda v, y: v[1].add_(y[:, :2])),
    changed_through_a_selection=_through(lambda h: h.select(1, 2), lambda v, y: v.sub_(y[:, 0])),
    changed_through_a_range=_through(lambda h: h.narrow(1, 1, 3), lambda v, y: v.copy_(y[:, :3])),
    changed_through_one_dimension_more=_through(lambda h: h.unsqueeze(1)[:, 0, ::2], lambda v, y: v.fill_(0.25)),
    changed_through_a_flat_view=_through(lambda h: h.flatten()[3:9], lambda v, y: v.mul_(y.flatten()[:6])),
    changed_by_an_activation_in_place=_through(lambda h: h[:, 1:4], lambda v, y: torch.relu_(v)),
    views_of_views_in_turn=_of_two,
    windows_by_places_in_memory=lambda h, y: (h * y).reshape(2, 3, 2, 2).as_strided((2, 5, 2, 2), (12, 2, 2, 1)).sin(),
    zeros_are_written=_made(lambda: torch.zeros(4, 8, dtype=torch.float64)),
    a_large_array_is_written=_large,
)
_written(
    "refused", a_third_is_never_written=_unwritten_third, written_without_gradients=_without_gradients,
    changed_through_a_diagonal=_through(lambda h: h.diagonal(), lambda v, y: v.mul_(2)),
    written_by_places=_put((slice(None), [0, 3]), lambda y: y[:, :2]),
    another_view_of_zeros_that_are_written=_made(
        lambda: torch.zeros(4, 8, dtype=torch.float64), also=lambda out: out[:, :1],
    ),
)


class PutTogether(torch.nn.Module):
    """A part written, and another copied into a view, as in DeepSeek V3."""

    def __init__(self) -> None:
        super().__init__()
        self.a = line()

    def forward(self, x: Any) -> Any:
        whole = x.new_empty(*x.shape)
        whole[..., :4] = self.a(x)[..., :4]
        whole[..., 4:].copy_(x[..., 4:])
        return whole


CASES["views_in_layers_alike"] = Case(
    "views_in_layers_alike", lambda: torch.nn.Sequential(*(PutTogether() for _ in range(4))), rows(), "equal",
)
