"""Gradients that custom autograd.Functions multiply by numbers of each place, and numbers that are not finite."""

from __future__ import annotations

from typing import Any

from torch_cases import F, case, line, net, nn, rows, simple, torch


def function(forward: Any, backward: Any) -> Any:
    """A custom autograd.Function of these two, which are given ctx."""
    own = type("Own", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    return lambda *given: own.apply(*given)


def kept(forward: Any) -> Any:
    """A forward that saves its first argument for backward."""

    def run(ctx: Any, x: Any, *rest: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.rest = rest
        return forward(x, *rest)

    return run


def _near(ctx: Any, g: Any) -> Any:
    """As binarised networks have it: nothing flows where a number is far from 0."""
    g = g.clone()
    g[ctx.saved_tensors[0].abs() > 1] = 0
    return g


def _of_rows(ctx: Any, g: Any) -> Any:
    """A gradient of all of a row, of a result of one number a row."""
    (x,) = ctx.saved_tensors
    return g * x.softmax(-1) * -0.5


def _of_all(ctx: Any, g: Any, scale: Any) -> Any:
    return g, (g * ctx.saved_tensors[0]).sum(0)


@case("equal")
def spikes() -> Any:
    """A spiking network: steps, whose gradient is that of a smooth curve, through three moments of time."""
    fire = function(kept(lambda x: (x > 0).to(x.dtype)), lambda ctx, g: g / (10 * ctx.saved_tensors[0].abs() + 1) ** 2)

    def forward(self: Any, x: Any) -> Any:
        given, held, out = self.a(x), torch.zeros(4, 6, dtype=x.dtype), 0
        for _ in range(3):
            spike = fire(held - 0.1)
            held, out = 0.9 * held * (1 - spike.detach()) + given, out + self.b(spike)
        return out

    return net(forward, a=line(), b=line())


@case("equal")
def signs_of_weights() -> Any:
    sign = function(kept(lambda x: (x >= 0).to(x.dtype) * 2 - 1), _near)
    return net(lambda self, x: F.linear(sign(self.a(x)), sign(self.b.weight), self.b.bias), a=line(), b=line())


@case("equal")
def reversed_by_a_factor() -> Any:
    turn = function(kept(lambda x, factor: x.view_as(x)), lambda ctx, g: (g.neg() * ctx.rest[0], None))
    return net(lambda self, x: self.b(turn(self.a(x), 0.3)) + self.a(x), a=line(), b=line())


@case("equal")
def gradient_of_rows() -> Any:
    top = function(kept(lambda x: x.max(-1, keepdim=True)[0]), _of_rows)
    return net(lambda self, x: self.b(self.a(x) * top(self.a(x))), a=line(), b=line())


@case("refused")
def gradient_that_is_summed() -> Any:
    scaled = function(kept(lambda x, scale: torch.round(x) * scale), lambda ctx, g: _of_all(ctx, g, None))
    return net(lambda self, x: scaled(self.a(x), self.w), a=line(), w=nn.Parameter(torch.rand(6)))


@case("equal")
def places_of_the_largest() -> Any:
    return net(
        lambda self, x: self.a(x).max(-1, keepdim=True)[0] + self.e(self.b(x).min(-1)[1]), a=line(), b=line(), e=nn.Embedding(6, 6),
    )


HIDDEN, LATER = torch.eye(4, 6, dtype=torch.bool)[:, :1], torch.ones(4, 6).tril(-1) > 0
for _name, _function in {
    "softmax_of_masked_rows": lambda x: x.masked_fill(HIDDEN, float("-inf")).softmax(-1).nan_to_num(),
    "softmax_of_masked_places": lambda x: torch.nan_to_num(x.masked_fill(LATER, -torch.inf).softmax(-1), nan=0.0),
    "softmax_of_columns_that_are_masked": lambda x: x.masked_fill(HIDDEN.expand(4, 6), -torch.inf).softmax(0).nan_to_num(),
    "finite_in_place": lambda x: (2 * x).nan_to_num_(0.0),
    "quotients_by_zero": lambda x: x + torch.nan_to_num((x / (x > 0).to(x.dtype)).detach(), 0.5, 2.0, -2.0),
}.items():
    simple(_function, name=_name)
simple(
    lambda x: (x + torch.zeros(6).masked_fill(torch.arange(6) > 3, -torch.inf)).softmax(-1).nan_to_num(), "refused",
    name="infinity_elsewhere",
)


@case("equal", lambda: (*rows(4, 5, 6)(), torch.tensor([[1, 1, 0, 1, 1], [0] * 5, [1] * 5, [0, 0, 0, 0, 1]])))
def samples_without_any_key() -> Any:
    """Attention written out, in which one sample has nothing to see."""

    def forward(self: Any, x: Any, seen: Any) -> Any:
        scores = self.a(x) @ x.transpose(1, 2)
        return torch.nan_to_num(scores.masked_fill(seen[:, None] == 0, float("-inf")).softmax(dim=-1)) @ x

    return net(forward, a=line())


@case("equal", lambda: (torch.randint(9, (11,)), torch.tensor([0, 3, 4])))
def bag_with_sparse_gradients() -> Any:
    """PyTorch's tutorial for the classes of texts, whose offsets must ascend."""
    return net(lambda self, t, begins: self.out(self.bag(t, begins)), bag=nn.EmbeddingBag(9, 6, sparse=True), out=line())


@case("equal")
def buffer_filled_by_copy() -> Any:
    """As longrope fills its frequencies: by sizes, before they are read."""

    def forward(self: Any, x: Any) -> Any:
        self.table.copy_(torch.where(torch.tensor(x.shape[0]) > 3, self.long, self.short))
        return self.a(x) * self.table

    return net(forward, a=line(), table=torch.zeros(6), long=torch.rand(6), short=torch.rand(6))


@case("refused")
def buffer_filled_after_it_was_read() -> Any:
    def forward(self: Any, x: Any) -> Any:
        y = self.a(x) * (self.table + 1)
        self.table.copy_(self.long)
        return y

    return net(forward, a=line(), table=torch.zeros(6), long=torch.rand(6))


@case("refused")
def buffer_that_counts_by_copy() -> Any:
    def forward(self: Any, x: Any) -> Any:
        self.count.copy_(self.count + 1)
        return self.a(x)

    return net(forward, a=line(), count=torch.zeros(1))
