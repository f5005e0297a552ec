"""Gradients that are stopped or changed, buffers and constants, parameters in expressions, types."""

from __future__ import annotations

import math
from typing import Any

from torch_cases import IMAGES, F, case, line, net, nn, rows, torch

# ---- frozen, detached ------------------------------------------------------------------------------------------------


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


@case("equal")
def no_grad_block() -> Any:
    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        return self.b(h)

    return net(forward, a=line(), b=line())


@case("equal")
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


@case("equal")
def decorated_no_grad() -> Any:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = line()

        @torch.no_grad()
        def forward(self, x):
            return self.a(x)

    return nn.Sequential(Part(), line())


@case("equal")
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


@case("equal")
def custom_gradient() -> Any:
    return net(lambda self, x: self.b(Reverse.apply(self.a(x))), a=line(), b=line())


@case("refused")
def custom_gradient_bound_before() -> Any:
    return net(lambda self, x: self.b(reverse(self.a(x))), a=line(), b=line())


@case("equal")
def custom_gradient_of_a_view() -> Any:
    return net(lambda self, x: View.apply(self.a(x)), a=line())


class Curve(torch.autograd.Function):
    """The derivative of forward, written by hand, with rounded constants, beside a plain result."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return torch.tanh(x) * 0.5, x**power

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * 0.50000001 * (1 - torch.tanh(x) ** 2) + h * ctx.power * x ** (ctx.power - 1), None


class Product(torch.autograd.Function):
    """Forward without ctx, of two tensors of different sizes."""

    @staticmethod
    def forward(x, weight):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0)


class Rounded(torch.autograd.Function):
    """A straight-through estimate."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Through(torch.autograd.Function):
    """The same where forward's functions are understood."""

    @staticmethod
    def forward(ctx, x):
        return torch.clamp(x, -0.5, 0.5)

    @staticmethod
    def backward(ctx, g):
        return g


class Clipped(torch.autograd.Function):
    """Large gradients are cut off."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-3.0, 3.0)


@case("equal")
def own_gradient_that_is_the_derivative() -> Any:
    return net(lambda self, x: self.b(sum(Curve.apply(self.a(x), 2))), a=line(), b=line())


@case("equal")
def own_gradient_of_a_parameter() -> Any:
    return net(lambda self, x: Product.apply(self.a(x), self.w), a=line(), w=nn.Parameter(torch.randn(6)))


@case("equal")
def own_gradient_straight_through() -> Any:
    return net(lambda self, x: self.b(Rounded.apply(self.a(x))), a=line(), b=line())


@case("equal")
def own_gradient_through_a_clamp() -> Any:
    return net(lambda self, x: self.b(Through.apply(self.a(x))), a=line(), b=line())


@case("refused")
def own_gradient_that_is_clipped() -> Any:
    return net(lambda self, x: self.b(Clipped.apply(self.a(x))), a=line(), b=line())


@case("equal")
def checkpointed() -> Any:
    from torch.utils.checkpoint import checkpoint

    return net(lambda self, x: self.b(checkpoint(self.a, x, use_reentrant=False)), a=line(), b=line())


# ---- buffers and constants -------------------------------------------------------------------------------------------


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


@case("equal")
def where_of_numbers() -> Any:
    return net(lambda self, x: torch.where(x > 0, self.a(x), x), a=line())


@case("equal")
def where_of_a_side_and_a_number() -> Any:
    def forward(self, x):
        h = self.a(x)
        return torch.where(h.mean(1, keepdim=True) <= 0.1, h * h, 0.5) + torch.where(h > 20, h, torch.log(1 + torch.exp(h)))

    return net(forward, a=line())


@case("equal")
def sides_that_are_joined() -> Any:
    return net(lambda self, x: torch.where((x > 0) & (x < 1), self.a(x), x), a=line())


@case("equal")
def a_side_of_another_tensor() -> Any:
    return net(lambda self, x: torch.where(x > self.a(x), self.a(x), x), a=line())


@case("refused")
def boolean_index() -> Any:
    return net(lambda self, x: self.a(x)[x > 0], a=line())


@case("equal")
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


class Turned(nn.Linear):  # type: ignore[misc, name-defined]
    """Linear layers as some write them: by a product with the weight turned round."""

    def forward(self, x: Any) -> Any:
        y = x @ self.weight.T + self.bias
        return y + torch.addmm(self.bias, x, self.weight.t()) + torch.mm(x, self.weight.transpose(0, 1)) + self.weight.t().sum(0)


@case("equal")
def weights_turned_round() -> Any:
    return net(lambda self, x: self.b(torch.relu(self.a(x))).sum(1, keepdim=True) + x.abs(), a=Turned(6, 6), b=line(6, 2))


@case("equal")
def bias_of_two_products() -> Any:
    """Of the second the weight is new and the bias is not."""
    def forward(self: Any, x: Any) -> Any:
        y = torch.addmm(self.a.bias, x, self.a.weight.t())
        return y + torch.addmm(self.a.bias, y, self.b.weight.t()) + F.linear(x, self.c.weight, self.a.bias)

    return net(forward, a=line(), b=line(bias=False), c=line(bias=False))


@case("equal")
def list_of_parameters() -> Any:
    made = net(lambda self, x: sum(x * w for w in self.ws) + self.d["one"], d=nn.ParameterDict({"one": torch.randn(6)}))
    made.ws = nn.ParameterList([torch.randn(6) for _ in range(3)])
    return made


@case("equal")
def parameter_that_is_not_used() -> Any:
    return net(lambda self, x: self.a(x), a=line(), other=nn.Parameter(torch.randn(3)), b=line(2, 3))


@case("equal")
def dtype_cast() -> Any:
    return net(lambda self, x: self.a(x).float().double(), a=line())


@case("refused")
def parameters_of_two_types() -> Any:
    made = net(lambda self, x: self.b(self.a(x).float()), a=line(), b=line())
    made.to_other = True
    return made


@case("equal")
def complex_numbers() -> Any:
    return net(lambda self, x: torch.view_as_real(torch.fft.fft(self.a(x))).sum(-1), a=line())


@case("equal", IMAGES)
def autocast() -> Any:
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.c(x).double()

    return net(forward, c=nn.Conv2d(3, 3, 1))
