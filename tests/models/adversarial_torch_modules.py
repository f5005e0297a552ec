"""PyTorch modules that are easily understood wrongly, and what has to become of each: "equal", or "refused" with a ValueError.

A case: the module's maker, the arguments of its forward (made after a seed), and the word. They are of the kinds that people write:
in-place operations, views, hooks, frozen parts, buffers, branches on training, shared layers, options of layers.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

Arguments = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Any]
    arguments: Arguments
    word: str  # equal, refused


CASES: dict[str, Case] = {}


def rows(*shape: int) -> Arguments:
    return lambda: (torch.randn(*(shape or (4, 6)), dtype=torch.float64),)


def ids(high: int = 7, *shape: int) -> Arguments:
    return lambda: (torch.randint(high, shape or (4, 5)),)


def case(word: str, arguments: Arguments = rows()) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorator of a module's maker."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        CASES[make.__name__] = Case(make.__name__, make, arguments, word)
        return make

    return add


def net(forward: Callable[..., Any], **parts: Any) -> Any:
    """A module of these parts (modules, parameters, buffers as plain tensors, other attributes) with this forward."""
    made = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
            made.register_buffer(name, part)
        else:
            setattr(made, name, part)
    return made


def line(i: int = 6, o: int = 6, **options: Any) -> Any:
    return nn.Linear(i, o, **options)


def simple(function: Callable[..., Any], word: str = "equal", arguments: Arguments = rows(), name: str = "") -> None:
    """A case of a linear layer, a function, and another linear layer if the width fits."""
    CASES[name] = Case(name, lambda: net(lambda self, x: function(self.a(x)), a=line()), arguments, word)


# ---- in place ----------------------------------------------------------------------------------------------------------------


@case("equal")
def relu_in_place_then_operand_again() -> Any:
    def forward(self, x):
        h = self.a(x)
        y = self.act(h)
        return self.b(y) + h  # h is what relu made of it

    return net(forward, a=line(), b=line(), act=nn.ReLU(inplace=True))


@case("equal")
def functional_relu_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        F.relu(h, inplace=True)
        return h * 2

    return net(forward, a=line())


@case("equal")
def add_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.add_(1.0).mul_(2.0)
        h += self.b(x)
        h *= 0.5
        h -= 1
        h /= 3
        return h

    return net(forward, a=line(), b=line())


@case("equal")
def two_names_of_one_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h
        k += 1
        return h + k

    return net(forward, a=line())


@case("refused")
def in_place_on_a_view_then_base() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.view(-1).mul_(2.0)
        return h

    return net(forward, a=line())


@case("refused")
def in_place_on_a_slice_then_base() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 0].add_(1.0)
        return h

    return net(forward, a=line())


@case("refused")
def in_place_on_base_then_view() -> Any:
    def forward(self, x):
        h = self.a(x)
        v = h[:, :3]
        h += 1
        return v * 2

    return net(forward, a=line())


@case("refused")
def plus_equals_on_a_slice() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 1:3] += 1
        return h

    return net(forward, a=line())


@case("refused")
def index_assignment() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 0] = 0.0
        return h

    return net(forward, a=line())


@case("refused")
def input_changed_in_place() -> Any:
    def forward(self, x):
        x += 1
        return self.a(x)

    return net(forward, a=line())


@case("refused")
def relu_in_place_on_the_input() -> Any:
    return nn.Sequential(nn.ReLU(inplace=True), line())


@case("refused")
def in_place_on_a_view_of_the_input() -> Any:
    return net(lambda self, x: self.a(x.view(4, 6).mul_(2.0)) + x.sum(), a=line())


@case("refused")
def chunks_changed_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        p, q = h.chunk(2, 1)
        p = F.relu(p, inplace=True)
        return torch.cat([p, q], 1) + h

    return net(forward, a=line())


@case("equal")
def clone_keeps_the_original() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.clone()
        k.add_(1.0)
        return h * k

    return net(forward, a=line())


@case("equal")
def contiguous_may_be_the_same_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.contiguous()
        k += 1
        return h * 2

    return net(forward, a=line())


@case("refused")
def reshape_shares_memory() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.reshape(2, 12).add_(1.0)
        return h

    return net(forward, a=line())


@case("equal")
def reshape_of_a_transpose_is_a_copy() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.t().reshape(-1)
        k = k.add_(1.0)
        return h.sum() + k.reshape(6, 4).t()

    return net(forward, a=line())


@case("refused")
def writes_with_out() -> Any:
    def forward(self, x):
        h = self.a(x)
        torch.add(h, 1.0, out=h)
        return h

    return net(forward, a=line())


# ---- hooks, patches, parametrizations ------------------------------------------------------------------------------------------


@case("refused")
def forward_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[0].register_forward_hook(lambda m, a, y: y * 2)
    return made


@case("refused")
def forward_hook_of_the_whole() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made.register_forward_hook(lambda m, a, y: y * 2)
    return made


@case("refused")
def forward_pre_hook() -> Any:
    made = nn.Sequential(line(), nn.Sequential(line()))
    made[1].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    return made


@case("refused")
def full_backward_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return made


@case("refused")
def full_backward_pre_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    return made


@case("refused")
def hook_on_a_parameter() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[0].weight.register_hook(lambda g: g * 2)
    return made


@case("refused")
def hook_on_a_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda g: g * 2)
        return h * 2

    return net(forward, a=line())


@case("refused")
def patched_forward_of_a_layer() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].forward = lambda x: x * 3
    return made


@case("refused")
def patched_forward_of_the_whole() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made.forward = lambda x: x * 3
    return made


@case("refused")
def patched_method() -> Any:
    class Has(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3)

        def forward(self, x):
            return self.conv(x)

    made = Has()
    made.conv._conv_forward = lambda x, w, b: F.conv2d(x, w * 2, b)
    return made


CASES["patched_method"] = Case("patched_method", patched_method, rows(2, 2, 5, 5), "refused")


@case("refused")
def weight_norm() -> Any:
    return nn.Sequential(parametrizations.weight_norm(line()), nn.Tanh())


@case("refused")
def old_weight_norm() -> Any:
    return nn.Sequential(nn.utils.weight_norm(line()), nn.Tanh())


@case("refused")
def spectral_norm() -> Any:
    return nn.Sequential(parametrizations.spectral_norm(line()), nn.Tanh())


@case("refused")
def parametrized() -> Any:
    class Twice(nn.Module):
        def forward(self, w):
            return w * 2

    made = nn.Sequential(line())
    parametrize.register_parametrization(made[0], "weight", Twice())
    return made


@case("refused")
def own_call() -> Any:
    class Twice(nn.Module):
        def __call__(self, x):
            return 2 * super().__call__(x)

        def forward(self, x):
            return x

    return nn.Sequential(line(), Twice())


# ---- subclasses ------------------------------------------------------------------------------------------------------------------


@case("equal")
def subclass_with_another_forward() -> Any:
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    return nn.Sequential(Twice(6, 6), nn.Tanh())


@case("equal")
def subclass_that_changes_nothing() -> Any:
    class Mine(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 5)

        def extra_repr(self) -> str:
            return "mine"

    return nn.Sequential(Mine(), nn.Tanh())


@case("refused", rows(2, 3, 5, 5))
def subclass_of_batch_norm_with_another_forward() -> Any:
    class Mine(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2

    return nn.Sequential(nn.Conv2d(3, 3, 1), Mine(3))


@case("refused", rows(2, 3, 5, 5))
def subclass_with_another_inner_method() -> Any:
    class Mine(nn.Conv2d):
        def _conv_forward(self, x, w, b):
            return super()._conv_forward(x, w - w.mean(), b)

    return nn.Sequential(Mine(3, 3, 3))


@case("equal")
def subclass_by_a_mixin() -> Any:
    class Doubles:
        def forward(self, x):
            return super().forward(x) * 2

    class Mine(Doubles, nn.Tanh):
        pass

    return nn.Sequential(line(), Mine())


# ---- frozen, detached ----------------------------------------------------------------------------------------------------------


@case("refused")
def frozen_layer() -> Any:
    made = nn.Sequential(line(), nn.Tanh(), line())
    made[0].weight.requires_grad_(False)
    return made


@case("equal")
def frozen_parameter_by_itself() -> Any:
    made = net(lambda self, x: self.a(x) * self.scale, a=line(), scale=nn.Parameter(torch.rand(6) + 1))
    made.scale.requires_grad_(False)
    return made


@case("refused")
def no_grad_block() -> Any:
    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        return self.b(h)

    return net(forward, a=line(), b=line())


@case("refused")
def detached() -> Any:
    return net(lambda self, x: self.b(self.a(x).detach()), a=line(), b=line())


@case("refused")
def data_of_a_tensor() -> Any:
    return net(lambda self, x: self.b(self.a(x).data), a=line(), b=line())


@case("equal")
def no_grad_of_the_input_only() -> Any:
    def forward(self, x):
        with torch.no_grad():
            h = x * 2 + 1
        return self.b(h)

    return net(forward, b=line())


@case("refused")
def decorated_no_grad() -> Any:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = line()

        @torch.no_grad()
        def forward(self, x):
            return self.a(x)

    return nn.Sequential(Part(), line())


@case("refused")
def stop_gradient_trick() -> Any:
    return net(lambda self, x: self.b((h := self.a(x)) + (torch.tanh(h) - h).detach()), a=line(), b=line())


@case("refused")
def inference_mode() -> Any:
    def forward(self, x):
        with torch.inference_mode():
            h = self.a(x)
        return self.b(h.clone())

    return net(forward, a=line(), b=line())


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return -g


class View(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


reverse = Reverse.apply


@case("refused")
def custom_gradient() -> Any:
    return net(lambda self, x: self.b(Reverse.apply(self.a(x))), a=line(), b=line())


@case("refused")
def custom_gradient_bound_before() -> Any:
    return net(lambda self, x: self.b(reverse(self.a(x))), a=line(), b=line())


@case("refused")
def custom_gradient_of_a_view() -> Any:
    return net(lambda self, x: View.apply(self.a(x)), a=line())


@case("equal")
def checkpointed() -> Any:
    from torch.utils.checkpoint import checkpoint

    return net(lambda self, x: self.b(checkpoint(self.a, x, use_reentrant=False)), a=line(), b=line())


# ---- batch normalisation ---------------------------------------------------------------------------------------------------------


def _normed(**options: Any) -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU())


IMAGES = rows(3, 3, 6, 6)


@case("equal", IMAGES)
def batch_norm() -> Any:
    return _normed(eps=1e-3, momentum=0.3)


@case("refused", IMAGES)
def batch_norm_kept_in_evaluation() -> Any:
    made = _normed()
    made[1].eval()
    return made


@case("refused", IMAGES)
def batch_norm_kept_in_evaluation_by_train() -> Any:
    class Net(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    return Net(*_normed()).train()


@case("refused", IMAGES)
def whole_in_evaluation() -> Any:
    return _normed().eval()


@case("refused", IMAGES)
def batch_norm_without_statistics() -> Any:
    return _normed(track_running_stats=False)


@case("refused", IMAGES)
def batch_norm_without_momentum() -> Any:
    return _normed(momentum=None)


@case("refused", IMAGES)
def batch_norm_without_affine() -> Any:
    return _normed(affine=False)


@case("refused", IMAGES)
def batch_norm_twice() -> Any:
    return net(lambda self, x: self.n(self.c(self.n(x))), c=nn.Conv2d(3, 3, 1), n=nn.BatchNorm2d(3))


@case("refused", IMAGES)
def statistics_read_outside() -> Any:
    return net(lambda self, x: self.n(x) + self.n.running_mean.reshape(3, 1, 1), n=nn.BatchNorm2d(3))


@case("refused", IMAGES)
def functional_batch_norm() -> Any:
    return net(
        lambda self, x: F.batch_norm(x, self.m, self.v, self.w, training=self.training), m=torch.zeros(3), v=torch.ones(3),
        w=nn.Parameter(torch.ones(3)),
    )


@case("refused", IMAGES)
def batch_norm_always_training() -> Any:
    class Net(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].train()
            return self

    return Net(*_normed())


# ---- arguments -------------------------------------------------------------------------------------------------------------------


@case("equal")
def default_of_an_argument() -> Any:
    return net(lambda self, x, scale=0.5, flip=False, mask=None: self.a(x) * scale if mask is None and not flip else x, a=line())


@case("equal")
def keyword_only_argument() -> Any:
    return net(lambda self, x, *, scale=3.0: self.a(x) * scale, a=line())


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)))
def keyword_only_tensor() -> Any:
    return net(lambda self, x, *, y: self.a(x) * y, a=line())


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), 0.25, "tanh"))
def arguments_that_are_no_tensors() -> Any:
    return net(lambda self, x, scale, act: getattr(torch, act)(self.a(x)) * scale, a=line())


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)))
def any_number_of_arguments() -> Any:
    return net(lambda self, *xs: self.a(sum(xs)), a=line())


@case("equal")
def default_that_is_a_tensor() -> Any:
    return net(lambda self, x, shift=torch.ones(6, dtype=torch.float64) * 3: self.a(x) + shift, a=line())


@case("equal")
def asks_whether_it_is_a_tensor() -> Any:
    return net(lambda self, x: self.a(x) if isinstance(x, torch.Tensor) else x * 2, a=line())


# ---- branches, state, random numbers ---------------------------------------------------------------------------------------------


@case("refused")
def branch_on_training() -> Any:
    return net(lambda self, x: self.a(x) if self.training else self.b(x), a=line(), b=line())


@case("refused")
def scale_by_training() -> Any:
    return net(lambda self, x: self.a(x) * (2.0 if self.training else 1.0), a=line())


@case("equal")
def second_head_in_training_only() -> Any:
    return net(lambda self, x: (self.a(x), self.b(x)) if self.training else self.a(x), a=line(), b=line())


@case("refused")
def dropout_that_ignores_the_mode() -> Any:
    return net(lambda self, x: F.dropout(self.a(x), 0.5), a=line())


@case("equal")
def dropout_of_zero() -> Any:
    return net(lambda self, x: self.d(F.dropout(self.a(x), 0.0, self.training)), a=line(), d=nn.Dropout(0.0))


@case("equal")
def dropout_never_training() -> Any:
    return net(lambda self, x: F.dropout(self.a(x), 0.5, training=False), a=line())


@case("equal")
def dropout_kept_in_evaluation() -> Any:
    class Net(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    return Net(line(), nn.Dropout(0.5)).train()


@case("refused")
def dropout_of_channels() -> Any:
    return nn.Sequential(line(), nn.Unflatten(1, (2, 3)), nn.Dropout1d(0.5))


@case("refused")
def depends_on_numbers() -> Any:
    return net(lambda self, x: self.a(x) if x.sum() > 0 else -x, a=line())


@case("refused")
def takes_a_number_out() -> Any:
    return net(lambda self, x: self.a(x) * x.mean().item(), a=line())


@case("refused")
def draws_random_numbers() -> Any:
    return net(lambda self, x: self.a(x) + torch.rand(6, dtype=torch.float64), a=line())


@case("refused")
def draws_noise_of_its_shape() -> Any:
    return net(lambda self, x: self.a(x) + torch.randn_like(x), a=line())


@case("refused")
def draws_with_python() -> Any:
    return net(lambda self, x: self.a(x) * random.random(), a=line())


@case("refused")
def draws_with_numpy() -> Any:
    return net(lambda self, x: self.a(x) * np.random.rand(), a=line())


@case("refused")
def seeds_by_itself() -> Any:
    def forward(self, x):
        torch.manual_seed(0)
        return self.a(x) * torch.rand(1).item()

    return net(forward, a=line())


@case("refused")
def counts_its_calls() -> Any:
    def forward(self, x):
        self.calls += 1
        return self.a(x) / self.calls

    return net(forward, a=line(), calls=0)


@case("refused")
def counts_in_a_list() -> Any:
    def forward(self, x):
        self.calls.append(1)
        return self.a(x) / len(self.calls)

    return net(forward, a=line(), calls=[])


@case("refused")
def counts_in_a_dict() -> Any:
    def forward(self, x):
        self.calls["n"] = self.calls.get("n", 0) + 1
        return self.a(x) / self.calls["n"]

    return net(forward, a=line(), calls={})


@case("refused")
def counts_in_a_closure() -> Any:
    calls = [0]

    def forward(self, x):
        calls[0] += 1
        return self.a(x) / calls[0]

    return net(forward, a=line())


@case("refused")
def buffer_written_in_place() -> Any:
    def forward(self, x):
        self.seen.add_(1)
        return self.a(x)

    return net(forward, a=line(), seen=torch.zeros(1))


@case("refused")
def buffer_copied_into() -> Any:
    def forward(self, x):
        h = self.a(x)
        self.mean.copy_(h.detach().mean(0))
        return h - self.mean

    return net(forward, a=line(), mean=torch.zeros(6))


@case("refused")
def buffer_replaced() -> Any:
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.a(x) - self.mean

    return net(forward, a=line(), mean=torch.zeros(6))


@case("refused")
def buffer_written_by_a_view() -> Any:
    def forward(self, x):
        self.seen[:2].add_(1)
        return self.a(x) + self.seen

    return net(forward, a=line(), seen=torch.zeros(6))


@case("refused")
def buffer_through_relu_in_place() -> Any:
    return net(lambda self, x: self.a(x) + F.relu(self.table, inplace=True), a=line(), table=torch.randn(6))


@case("refused")
def keeps_the_last_output() -> Any:
    def forward(self, x):
        h = self.a(x) if self.last is None else self.a(x) + self.last
        self.last = h.detach()
        return h

    return net(forward, a=line(), last=None)


@case("equal")
def leaves_its_output_behind() -> Any:
    def forward(self, x):
        self.features = self.a(x)
        return torch.tanh(self.features)

    return net(forward, a=line(), features=None)


@case("equal")
def caches_a_table() -> Any:
    made = net(lambda self, x: self.a(x) + self.table[:6], a=line())
    made.table = torch.arange(9.0, dtype=torch.float64)
    return made


# ---- buffers and constants -------------------------------------------------------------------------------------------------------


@case("equal")
def buffer_outside_of_layers() -> Any:
    return net(lambda self, x: self.a(x) * self.table + self.table.cos(), a=line(), table=torch.randn(6))


@case("equal")
def buffer_not_persistent() -> Any:
    made = net(lambda self, x: self.a(x) - self.table[:, 2:8], a=line())
    made.register_buffer("table", torch.randn(1, 9), persistent=False)
    return made


@case("equal", rows(2, 5, 6))
def positions_by_arange() -> Any:
    return net(lambda self, x: self.a(x) + self.p(torch.arange(x.size(1), device=x.device)), a=line(), p=nn.Embedding(7, 6))


@case("equal", rows(2, 5, 6))
def mask_by_tril() -> Any:
    def forward(self, x):
        scores = self.a(x) @ x.transpose(1, 2) / math.sqrt(x.size(-1))
        mask = torch.tril(torch.ones(x.size(1), x.size(1), device=x.device)) == 0
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ x

    return net(forward, a=line())


@case("equal", rows(2, 5, 6))
def mask_by_a_buffer() -> Any:
    def forward(self, x):
        scores = self.a(x) @ x.mT
        return F.softmax(scores.masked_fill(self.mask[:, : x.size(1), : x.size(1)] == 0, -1e9), dim=-1) @ x

    return net(forward, a=line(), mask=torch.tril(torch.ones(1, 8, 8)))


@case("equal")
def where_of_a_buffer() -> Any:
    return net(lambda self, x: torch.where(self.m, self.a(x), torch.tanh(x)), a=line(), m=torch.arange(6) % 2 == 0)


@case("refused")
def where_of_numbers() -> Any:
    return net(lambda self, x: torch.where(x > 0, self.a(x), x), a=line())


@case("refused")
def boolean_index() -> Any:
    return net(lambda self, x: self.a(x)[x > 0], a=line())


@case("refused")
def integer_operations() -> Any:
    return net(lambda self, x: self.a(x) * (x > 0), a=line())


@case("equal")
def likes() -> Any:
    return net(
        lambda self, x: self.a(x) * torch.ones_like(x) + torch.full_like(x, 2.0) + x.new_ones(6) + torch.zeros_like(x), a=line()
    )


@case("equal")
def tensors_as_numbers() -> Any:
    return net(lambda self, x: self.a(x) * torch.tensor(2.0) + torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=x.dtype), a=line())


@case("equal")
def parameter_in_an_expression() -> Any:
    return net(
        lambda self, x: self.a(x) * torch.sigmoid(self.gate) + self.rows.view(2, 3).reshape(-1) / 2, a=line(),
        gate=nn.Parameter(torch.tensor(0.3)), rows=nn.Parameter(torch.randn(6)),
    )


@case("equal")
def parameter_twice_in_different_ways() -> Any:
    return net(lambda self, x: (x @ self.w + self.b) @ self.w.t() - self.b, w=nn.Parameter(torch.randn(6, 6)),
               b=nn.Parameter(torch.randn(6)))


@case("equal")
def list_of_parameters() -> Any:
    made = net(lambda self, x: sum(x * w for w in self.ws) + self.d["one"], d=nn.ParameterDict({"one": torch.randn(6)}))
    made.ws = nn.ParameterList([torch.randn(6) for _ in range(3)])
    return made


@case("equal")
def parameter_that_is_not_used() -> Any:
    return net(lambda self, x: self.a(x), a=line(), other=nn.Parameter(torch.randn(3)), b=line(2, 3))


@case("refused")
def dtype_cast() -> Any:
    return net(lambda self, x: self.a(x).float().double(), a=line())


@case("refused")
def parameters_of_two_types() -> Any:
    made = net(lambda self, x: self.b(self.a(x).float()), a=line(), b=line())
    made.to_other = True
    return made


@case("refused")
def complex_numbers() -> Any:
    return net(lambda self, x: torch.view_as_real(torch.fft.fft(self.a(x))).sum(-1), a=line())


@case("refused", IMAGES)
def autocast() -> Any:
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.c(x).double()

    return net(forward, c=nn.Conv2d(3, 3, 1))


# ---- sharing ---------------------------------------------------------------------------------------------------------------------


@case("equal")
def layer_called_twice() -> Any:
    return net(lambda self, x: self.a(torch.tanh(self.a(x))), a=line())


@case("equal")
def layer_under_two_names() -> Any:
    shared = line()
    return nn.Sequential(shared, nn.Tanh(), shared)


@case("equal")
def weight_shared_by_two_layers() -> Any:
    made = nn.Sequential(line(bias=False), nn.Tanh(), line(bias=False))
    made[2].weight = made[0].weight
    return made


@case("refused")
def weight_shared_but_not_the_bias() -> Any:
    made = nn.Sequential(line(), nn.Tanh(), line())
    made[2].weight = made[0].weight
    return made


@case("refused")
def parameters_in_one_memory() -> Any:
    made = nn.Sequential(line(bias=False), nn.Tanh(), line(6, 3, bias=False)).double()
    made[2].weight = nn.Parameter(made[0].weight.data[:3])
    return made


@case("equal")
def copied_layers() -> Any:
    first = line()
    return nn.Sequential(first, nn.Tanh(), copy.deepcopy(first))


@case("equal", ids())
def tied_embedding() -> Any:
    made = net(lambda self, t: self.out(torch.tanh(self.e(t))), e=nn.Embedding(7, 6), out=line(6, 7, bias=False))
    made.out.weight = made.e.weight
    return made


@case("equal", ids())
def tied_embedding_by_function() -> Any:
    return net(lambda self, t: F.linear(torch.tanh(self.e(t)), self.e.weight), e=nn.Embedding(7, 6))


@case("equal", ids())
def tied_embedding_by_product() -> Any:
    return net(lambda self, t: torch.tanh(self.e(t)) @ self.e.weight.t(), e=nn.Embedding(7, 6))


@case("refused", rows(2, 5, 6))
def lstm_twice() -> Any:
    return net(lambda self, x: self.r(self.r(x)[0])[0], r=nn.LSTM(6, 6, batch_first=True))


@case("refused", rows(2, 5, 6))
def attention_shares_its_weights() -> Any:
    made = net(lambda self, x: self.m(x, x, x)[0] + self.n(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True),
               n=nn.MultiheadAttention(6, 2, batch_first=True))
    made.n.in_proj_weight = made.m.in_proj_weight
    return made


@case("refused", rows(2, 5, 6))
def attention_weight_read_by_itself() -> Any:
    return net(lambda self, x: self.m(x, x, x)[0] * self.m.out_proj.weight.mean(), m=nn.MultiheadAttention(6, 2, batch_first=True))


@case("equal")
def modules_in_a_loop() -> Any:
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    return net(forward, layers=nn.ModuleList([line() for _ in range(3)]))


@case("refused")
def modules_in_a_plain_list() -> Any:
    made = net(lambda self, x: self.layers[0](x))
    made.layers = [line().double()]
    return made


@case("refused")
def lazy_layer() -> Any:
    return nn.Sequential(nn.LazyLinear(6), nn.Tanh())


@case("equal")
def layer_as_the_whole() -> Any:
    return line()


@case("equal")
def norm_as_the_whole() -> Any:
    return nn.LayerNorm(6, eps=1e-2)


# ---- options of layers -------------------------------------------------------------------------------------------------------------


def _layers(word: str, arguments: Arguments, **made: Callable[[], Any]) -> None:
    for name, make in made.items():
        CASES[name] = Case(name, make, arguments, word)


_layers(
    "refused", ids(),
    embedding_padding=lambda: nn.Sequential(nn.Embedding(7, 6, padding_idx=0), line()),
    embedding_norm=lambda: nn.Sequential(nn.Embedding(7, 6, max_norm=0.5), line()),
    embedding_frequency=lambda: nn.Sequential(nn.Embedding(7, 6, scale_grad_by_freq=True), line()),
    functional_embedding_padding=lambda: net(lambda s, t: F.embedding(t, s.e.weight, padding_idx=1), e=nn.Embedding(7, 6)),
)
_layers(
    "equal", ids(), functional_embedding=lambda: net(lambda s, t: F.embedding(t, s.e.weight), e=nn.Embedding(7, 6)),
)
_layers(
    "equal", rows(2, 5, 6),
    norm_without_bias=lambda: nn.Sequential(line(), nn.LayerNorm(6, bias=False)),
    norm_without_weights=lambda: nn.Sequential(line(), nn.LayerNorm(6, elementwise_affine=False)),
    norm_of_two_dimensions=lambda: nn.Sequential(line(), nn.LayerNorm((5, 6), eps=1e-2)),
    rms_norm=lambda: nn.Sequential(line(), nn.RMSNorm(6), nn.RMSNorm(6, eps=0.1, elementwise_affine=False)),
    functional_norm_with_another_eps=lambda: net(
        lambda s, x: F.layer_norm(s.n(s.a(x)), (6,), s.n.weight, s.n.bias, 1e-2), a=line(), n=nn.LayerNorm(6)),
    functional_norm_of_own_parameters=lambda: net(
        lambda s, x: F.layer_norm(s.a(x), (6,), s.g, s.b, 1e-2), a=line(), g=nn.Parameter(torch.rand(6)),
        b=nn.Parameter(torch.rand(6))),
    functional_norm_of_the_whole=lambda: net(
        lambda s, x: F.layer_norm(s.a(x), (6,), s.weight, s.bias, 1e-3), a=line(), weight=nn.Parameter(torch.rand(6)),
        bias=nn.Parameter(torch.rand(6))),
    functional_norm_without_parameters=lambda: net(lambda s, x: F.layer_norm(s.a(x), (6,)), a=line()),
    encoder_layer=lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)),
    encoder_layer_with_tanh_gelu=lambda: nn.Sequential(nn.TransformerEncoderLayer(
        6, 2, 8, dropout=0.0, batch_first=True, activation=lambda x: F.gelu(x, approximate="tanh"), norm_first=True)),
    encoder_layer_with_own_activation=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=lambda x: torch.sin(x))),
    encoder_layer_eps=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, layer_norm_eps=0.1, bias=False)),
    encoder_causal=lambda: net(
        lambda s, x: s.e(x, mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype), is_causal=True),
        e=nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2, enable_nested_tensor=False)),
    attention_layer=lambda: net(lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    attention_layer_causal=lambda: net(
        lambda s, x: s.m(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))[0],
        m=nn.MultiheadAttention(6, 2, batch_first=True)),
    causal_attention=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, is_causal=True), a=line()),
    causal_attention_of_fewer_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x)[:, 2:4], x, x, is_causal=True), a=line()),
    causal_attention_of_more_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x[:, :3], x[:, :3], is_causal=True), a=line()),
    attention_with_scale=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, scale=0.1), a=line()),
    attention_with_a_mask=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=s.m), a=line(), m=torch.ones(5, 5).tril().bool()),
    attention_with_numbers_as_mask=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=s.m.to(x.dtype)), a=line(), m=torch.randn(5, 5)),
    grouped_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(
            s.a(x).view(2, 5, 3, 2).transpose(1, 2), *([x[:, :, :2].unsqueeze(1)] * 2), enable_gqa=True), a=line()),
    lstm=lambda: net(lambda s, x: s.r(x)[0] + s.r.training * 0, r=nn.LSTM(6, 4, 2, batch_first=True)),
    lstm_last_state=lambda: net(lambda s, x: s.r(x)[1][0][-1], r=nn.LSTM(6, 4, 2, batch_first=True)),
)
_layers(
    "refused", rows(2, 5, 6),
    attention_layer_masked=lambda: net(
        lambda s, x: s.m(x, x, x, attn_mask=torch.eye(5, dtype=torch.bool))[0], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    encoder_layer_whose_evaluation_is_pytorchs_mistake=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=nn.GELU("tanh"))),
    attention_weights_used=lambda: net(lambda s, x: s.m(x, x, x)[1], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    attention_layer_not_batch_first=lambda: net(lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2)),
    attention_layer_zero=lambda: net(
        lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True, add_zero_attn=True)),
    attention_masked_by_numbers=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=(x @ x.mT) > 0), a=line()),
    attention_that_drops=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, dropout_p=0.5), a=line()),
    lstm_not_batch_first=lambda: net(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 4)),
    lstm_both_ways=lambda: net(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 4, batch_first=True, bidirectional=True)),
    lstm_first_state=lambda: net(
        lambda s, x: s.r(x, (torch.ones(1, 2, 4), torch.ones(1, 2, 4)))[0], r=nn.LSTM(6, 4, batch_first=True)),
    gru=lambda: net(lambda s, x: s.r(x)[0], r=nn.GRU(6, 4, batch_first=True)),
    sum_of_another_type=lambda: net(lambda s, x: s.a(x).sum(-1, dtype=torch.float32), a=line()),
    rounded_quotient=lambda: net(lambda s, x: torch.div(s.a(x), 2, rounding_mode="floor"), a=line()),
)
_layers(
    "equal", IMAGES,
    pools=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(2, 2, ceil_mode=True), nn.AvgPool2d(2, 1, count_include_pad=False)),
    pools_by_function=lambda: net(
        lambda s, x: F.avg_pool2d(F.max_pool2d(s.c(x), 3, 2, 1), 2, ceil_mode=True) , c=nn.Conv2d(3, 3, 1)),
    same_padding=lambda: nn.Sequential(nn.Conv2d(3, 4, (2, 4), padding="same", dilation=(1, 2))),
    convolution_by_function=lambda: net(lambda s, x: F.conv2d(x, s.c.weight, s.c.bias, padding=1) + s.c(F.pad(x, (1, 1, 1, 1))),
                                        c=nn.Conv2d(3, 2, 3)),
    nearest=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=(1, 2))),
    group_norm_by_function=lambda: net(lambda s, x: F.group_norm(s.c(x), 2, eps=0.1), c=nn.Conv2d(3, 4, 1)),
    leaky=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.LeakyReLU(0.3, inplace=True)),
    channels_last=lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten()).to(memory_format=torch.channels_last),
    patches=lambda: net(lambda s, x: s.c(x).unfold(2, 2, 2).sum(-1) if False else s.c(x).unflatten(2, (2, -1)).mean(3),
                        c=nn.Conv2d(3, 3, 1)),
)
_layers(
    "refused", IMAGES,
    pool_with_indices=lambda: net(lambda s, x: s.p(s.c(x))[0], c=nn.Conv2d(3, 3, 1), p=nn.MaxPool2d(2, return_indices=True)),
    pool_with_divisor=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(2, divisor_override=3)),
    reflected=lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")),
    circular=lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")),
    bilinear=lambda: net(lambda s, x: F.interpolate(s.c(x), scale_factor=2, mode="bilinear", align_corners=True), c=nn.Conv2d(3, 3, 1)),
    half_size=lambda: net(lambda s, x: F.interpolate(s.c(x), scale_factor=0.5), c=nn.Conv2d(3, 3, 1)),
    reflected_pad=lambda: net(lambda s, x: F.pad(s.c(x), (1, 1, 1, 1), mode="reflect"), c=nn.Conv2d(3, 3, 1)),
    output_size=lambda: net(lambda s, x: s.c(x, output_size=(13, 13)), c=nn.ConvTranspose2d(3, 3, 3, 2)),
    stochastic_pool=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.FractionalMaxPool2d(2, output_size=3)),
    instance_norm=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3)),
)

# ---- functions ---------------------------------------------------------------------------------------------------------------------

for _name, _function in {
    "root_mean_square": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "quotient_of_tensors": lambda x: x / (x.abs() + 1),
    "number_by_tensor": lambda x: 2.0 / (x * x + 1) + 1 / (1 + torch.exp(-x)),
    "powers": lambda x: x**2 + x.pow(3) + torch.square(x) + (x * x + 1) ** 0.5,
    "logarithm": lambda x: torch.log(x.exp() + 1) + torch.sqrt(x * x + 1),
    "clamped": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0) + torch.clamp(x, max=0.3),
    "clamped_at_the_end": lambda x: (F.relu(x)).clamp(min=0.0, max=1.0),
    "alpha": lambda x: torch.add(x, x * x, alpha=3) - torch.sub(x, 2.0, alpha=2),
    "spread": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) + x.var(0, unbiased=False),
    "stacked": lambda x: torch.stack([x, x * 2], 1).sum(1) + torch.stack(x.unbind(1), -1),
    "unpacked": lambda x: sum(part * i for i, part in enumerate(x.t())),
    "iterated": lambda x: torch.stack([row * 2 for row in x]),
    "negative_dimensions": lambda x: torch.cat([x.unsqueeze(-1), x.unsqueeze(-1)], -1).transpose(-1, -2).flatten(-2, -1),
    "moved": lambda x: x.view(4, 2, 3).permute(2, 0, -2).movedim(0, -1).reshape(4, 2, 3).swapaxes(1, 2),
    "strided_view": lambda x: x.t()[::2].t().contiguous() * x[:, 1::2],
    "negative_slices": lambda x: x[..., -3:] * x[:, :-3] + x[1:2, None, -1],
    "repeated": lambda x: x.repeat(2, 1).view(2, 4, 6).sum(0) + x.repeat_interleave(2, dim=1)[:, :6],
    "expanded": lambda x: x[:, :1].expand(-1, 6) * x.unsqueeze(0).expand(3, 4, 6).sum(0) + x[:, 1:2].expand_as(x),
    "broadcast": lambda x: x.unsqueeze(1) * x.unsqueeze(0) + x,
    "einsum": lambda x: torch.einsum("bi,bj->bij", x, x).sum(-1) + torch.einsum("ij,kj->ik", [x, x]).sum(1, keepdim=True),
    "matrices_of_other_ranks": lambda x: x.view(2, 2, 6) @ x.t() @ x + x.view(2, 1, 2, 6) @ x.view(1, 2, 2, 6).mT @ x.view(2, 2, 6),
    "matrix_by_vector": lambda x: (x @ x[0]).unsqueeze(1) + torch.mm(x, x.t()).mean(1, keepdim=True),
    "rolled": lambda x: torch.roll(x, 1, 1) + x.roll((1, -2), (0, 1)),
    "padded": lambda x: F.pad(x, (1, 2), value=0.5)[:, 2:8],
    "gate": lambda x: F.silu(x) * torch.sigmoid(x) + F.gelu(x, approximate="tanh") + F.hardtanh(x, -0.3, 0.4),
    "all_of_it": lambda x: x.mean() + x.sum(()) * 0.1 + x.sum((0, 1), keepdim=True),
    "sizes": lambda x: x.reshape(x.shape[0], -1, 2).mean(x.dim()) * x.size()[1] + x.numel() / len(x),
    "casts_to_itself": lambda x: x.to(x.dtype).type_as(x).double().cpu().clone(memory_format=torch.preserve_format),
    "softmax_by_dtype": lambda x: F.softmax(x, dim=-1, dtype=torch.float64).to(x.dtype),
    "minus_from": lambda x: 1 - x + (2 - x * x),
    "nested_outputs": lambda x: (x, (x * 2, [x + 1])),
    "dictionary_output_refused_or_equal": lambda x: (x, {"a": x * 2}),
}.items():
    simple(_function, name=_name)
for _name, _function in {
    "cumulative": lambda x: x.cumsum(1), "sorted": lambda x: x.sort(1)[0], "maximum": lambda x: x.max(1)[0],
    "largest": lambda x: torch.amax(x, 1), "straight_through": lambda x: x.round(), "log_softmax": lambda x: F.log_softmax(x, -1),
    "quantized_stub": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), "norm": lambda x: F.normalize(x),
    "tensor_exponent": lambda x: x.abs() ** x, "random_relu": lambda x: F.rrelu(x, training=True), "zeroed": lambda x: x.zero_() + 1,
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True), "feature_dropout": lambda x: F.dropout1d(x.view(4, 2, 3), 0.5, True),
    "index_select": lambda x: x[:, [0, 2, 1]], "flipped": lambda x: x.flip(1), "diagonal": lambda x: x[:, :4].diagonal(),
    "gumbel": lambda x: F.gumbel_softmax(x), "strided": lambda x: torch.as_strided(x, (3, 3), (1, 1)),
    "integer_argmax": lambda x: x * x.argmax(1, keepdim=True), "numpy": lambda x: torch.from_numpy(np.asarray(x.detach())) * x,
    "printed_number": lambda x: x * float(f"{x.sum():.3f}"), "dictionary": lambda x: {"out": x}, "no_tensor": lambda x: 3,
}.items():
    simple(_function, "refused", name=_name)


class Rotary(nn.Module):
    """Llama's block: root mean square, rotary positions from buffers, grouped queries, a gated feed-forward part."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2, steps: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.norm1, self.norm2 = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.rand(width) + 0.5)
        self.q, self.k = line(width, width, bias=False), line(width, groups * self.each, bias=False)
        self.v, self.o = line(width, groups * self.each, bias=False), line(width, width, bias=False)
        self.gate, self.up, self.down = (line(a, b, bias=False) for a, b in ((width, 24), (width, 24), (24, width)))
        angles = torch.outer(torch.arange(steps).double(), 1e4 ** (-torch.arange(0, self.each, 2).double() / self.each))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def rms(self, x: Any, weight: Any) -> Any:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def turn(self, x: Any) -> Any:
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        steps = x.shape[-2]
        return x * self.cos[:steps] + torch.cat((-b, a), dim=-1) * self.sin[:steps]

    def forward(self, x: Any) -> Any:
        n, steps, _ = x.shape
        h = self.rms(x, self.norm1)
        q = self.turn(self.q(h).view(n, steps, self.heads, -1).transpose(1, 2))
        k = self.turn(self.k(h).view(n, steps, self.groups, -1).transpose(1, 2))
        v = self.v(h).view(n, steps, self.groups, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.each)
        mask = torch.full((steps, steps), float("-inf"), device=x.device).triu(1)
        y = F.softmax(scores + mask, dim=-1).to(q.dtype) @ v
        x = x + self.o(y.transpose(1, 2).contiguous().view(n, steps, -1))
        h = self.rms(x, self.norm2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@case("equal", ids(7, 2, 6))
def llama() -> Any:
    return nn.Sequential(nn.Embedding(7, 16), Rotary(), Rotary(), line(16, 7, bias=False))


@case("equal", rows(2, 6, 16))
def llama_by_functions() -> Any:
    class Block(Rotary):
        def forward(self, x):
            n, steps, _ = x.shape
            h = F.rms_norm(x, (16,), self.norm1, 1e-5)
            q = self.turn(self.q(h).view(n, steps, self.heads, -1).transpose(1, 2))
            k = self.turn(self.k(h).view(n, steps, self.groups, -1).transpose(1, 2))
            v = self.v(h).view(n, steps, self.groups, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return x + self.o(y.transpose(1, 2).reshape(n, steps, -1))

    return Block()
