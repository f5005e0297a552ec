"""One tensor or another by a mask, of which what is not taken has no say; one method or another as forward."""

from __future__ import annotations

from typing import Any

from torch_cases import F, case, ids, line, net, nn, rows, torch

HIDDEN = torch.arange(6) % 3 == 0
BEYOND = torch.tensor([torch.inf, 1.0, 2.0, -torch.inf, 3.0, 4.0])  # no numbers where HIDDEN


@case("equal")
def filled_where_there_are_no_numbers() -> Any:
    return net(lambda self, x: (self.a(x) + self.t).masked_fill(self.m, 0.5), a=line(), m=HIDDEN, t=BEYOND)


@case("equal")
def others_where_there_are_no_numbers() -> Any:
    def forward(self, x):
        h = self.a(x) + self.t
        return torch.where(self.m, x, h) + torch.where(~self.m, h, 0.5) + h.where(~self.m, self.b) + torch.where(~self.m, h, self.s)

    return net(forward, a=line(), m=HIDDEN, t=BEYOND, b=nn.Parameter(torch.randn(6)), s=torch.randn(4, 1))


@case("equal")
def infinite_gradients_of_what_is_not_taken() -> Any:
    """The slope of a square root is infinite at 0."""
    def forward(self, x):
        h = self.a(x).abs()
        return h.masked_fill(self.m, 0.0).sqrt() + torch.where(self.m, torch.zeros_like(h), h).sqrt()

    return net(forward, a=line(), m=HIDDEN)


@case("equal", ids(7, 4, 5))
def infinite_gradients_where_a_token_is() -> Any:
    def forward(self, t):
        h, hidden = self.words(t).abs(), (t < 3)[..., None]
        return h.masked_fill(hidden, 0.0).sqrt() + torch.where(hidden, 0.0, h).sqrt() + torch.where(hidden, h.detach(), h)

    return net(forward, words=nn.Embedding(7, 6))


@case("equal", ids(7, 4, 5))
def infinity_where_a_token_is() -> Any:
    """The least of each column but of the words that are hidden, of which there is none in some."""
    def forward(self, t):
        return self.words(t).masked_fill((t > 4)[..., None], torch.inf).amin(1).clamp(max=9.0)

    return net(forward, words=nn.Embedding(7, 6))


@case("equal", rows(3, 5, 6))
def filled_with_what_another_shape_says() -> Any:
    return net(lambda self, x: self.a(x).masked_fill(self.m[:, None], -2.0).softmax(1), a=line(), m=torch.arange(5) % 2 == 0)


@case("equal")
def the_larger_of_what_is_far_apart() -> Any:
    """As a recurrence in the space of logarithms begins."""
    def forward(self, x):
        h = self.a(x)
        return torch.maximum(h, self.low) + torch.minimum(self.high, h) + torch.maximum(h, self.inf) + torch.maximum(h, h) / 2

    return net(forward, a=line(), low=torch.full((6,), -1e38), high=torch.full((4, 6), 1e38), inf=torch.full((6,), -torch.inf))


@case("equal")
def masks_of_floats() -> Any:
    """Splines of their knots, gates of thresholds, and what is larger than a mean."""
    def forward(self, x):
        h = self.a(x)[..., None]
        inside = ((h >= self.knots[:-1]) & (h < self.knots[1:])).to(x.dtype)
        over = (self.a(x) > self.w) | (x <= 0.1)
        return (inside * h).sum(-1) + x * over + (x > x.mean(1, keepdim=True)).float().to(x.dtype) * (x != self.a(x))

    return net(forward, a=line(), knots=torch.linspace(-1, 1, 5), w=nn.Parameter(torch.randn(6)))


@case("equal", ids(7, 4, 5))
def how_many_are_true() -> Any:
    def forward(self, t):
        real, h = t != 2, self.words(t)
        mean = (h * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        some = (h > 0.5).any(-1, keepdim=True) & (h < 2.0).all(dim=2, keepdim=True)
        return mean[:, None] + h * some + real.sum() + real.sum(1, dtype=h.dtype)[:, None, None]

    return net(forward, words=nn.Embedding(7, 6))


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), torch.randint(3, (4,))))
def numbers_written_where_masks_say() -> Any:
    def forward(self, x, t):
        h = self.a(x) + 0.0
        h[h > 1] = 1.0
        h[t == 1] = 0.0
        h[self.m] = -torch.inf
        return h.exp()

    return net(forward, a=line(), m=torch.eye(4, 6, dtype=torch.bool))


@case("equal")
def all_but_the_diagonal() -> Any:
    """As the losses of Barlow twins take it."""
    def forward(self, x):
        h = self.a(x)
        return (h.T @ h)[~torch.eye(6, dtype=torch.bool)].pow(2).sum() + h[:, self.m].sum() + h[self.m[:4]].mean()

    return net(forward, a=line(), m=torch.arange(6) > 2)


@case("equal")
def a_layer_with_other_parameters() -> Any:
    def forward(self, x):
        moved = {"weight": self.a.weight - self.rate * self.b.weight, "bias": self.a.bias}
        return torch.func.functional_call(self.a, moved, (x,)) + self.a(x) + self.b(x)

    return net(forward, a=line(), b=line(), rate=nn.Parameter(torch.randn(6, 1)))


@case("equal")
def chosen_by_gumbel_noise() -> Any:
    def forward(self, x):
        soft = F.gumbel_softmax(self.a(x), tau=0.7)
        return self.b(soft) + F.gumbel_softmax(self.a(x), hard=True, dim=0)

    return net(forward, a=line(), b=line())


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), torch.rand(4, 6, dtype=torch.float64)))
def targets_that_are_probabilities() -> Any:
    return net(lambda self, x, y: F.binary_cross_entropy(self.a(x).sigmoid(), y), a=line())


@case("equal", rows(4, 3))
def weights_made_of_one_vector() -> Any:
    """A hypernetwork."""
    def forward(self, x):
        return F.linear(x, self.make(self.z).view(5, 3))

    return net(forward, make=line(4, 15), z=nn.Parameter(torch.randn(4)))


# ---- forward that is chosen ------------------------------------------------------------------------------------------------


class ChoosesItsForward(nn.Module):
    """As FasterNet has it: an argument says which of two methods is forward."""

    def __init__(self, fast: bool) -> None:
        super().__init__()
        self.a = line()
        self.forward = self.forward_fast if fast else self.forward_slow

    def forward_fast(self, x):
        return self.a(x)

    def forward_slow(self, x):
        return self.a(x).tanh() * 2


@case("equal")
def forward_that_is_chosen_when_the_module_is_made() -> Any:
    return nn.Sequential(*(ChoosesItsForward(fast) for fast in (True, False, True, False)))


class LineOfItsOwn(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)
        self.forward = self.forward_doubled

    def forward_doubled(self, x):
        return F.linear(x, self.weight * 2, self.bias)


@case("equal")
def layer_whose_forward_is_chosen() -> Any:
    return nn.Sequential(LineOfItsOwn(), nn.Tanh(), line())


@case("refused")
def forward_of_another_instance() -> Any:
    made = nn.Sequential(*(ChoosesItsForward(False) for _ in range(2)))
    made[1].forward = made[0].forward_fast
    return made


@case("equal", ids(7, 4, 5))
def masks_joined_with_fixed_ones() -> Any:
    """As texts of different lengths stand before an image."""
    def forward(self, t):
        seen = torch.cat([t > 2, torch.ones(4, 3, dtype=torch.bool)], dim=1)
        return self.b(torch.cat([self.words(t), self.image.expand(4, 3, 6)], 1)).masked_fill(~seen[..., None], 0.25)

    return net(forward, words=nn.Embedding(7, 6), image=nn.Parameter(torch.randn(3, 6)), b=line())


@case("equal", ids(7, 4, 5))
def truth_values_written_into_masks() -> Any:
    def forward(self, t):
        both = (t > 2)[:, :, None] & (t > 1)[:, None, :]
        both[..., 0] = True
        both[:, 1::2, 1] = False
        return self.words(t) + both.to(torch.float64) @ self.words(t)

    return net(forward, words=nn.Embedding(7, 6).double())


@case("refused", ids(7, 4, 5))
def numbers_written_into_masks() -> Any:
    def forward(self, t):
        seen = t > 2
        seen[:, 1] = t[:, 0] > 3
        return self.words(t).masked_fill(seen[..., None], 0.25)

    return net(forward, words=nn.Embedding(7, 6))


def _nests() -> tuple[Any, ...]:
    """Tensors in a dict and in a list, and sizes, as UNets and transformers of diffusion are given them."""
    added = {"texts": torch.randn(4, 6, dtype=torch.float64), "times": torch.randint(7, (4,)), "scale": 0.5}
    return torch.randn(4, 6, dtype=torch.float64), added, [torch.randn(4, 6, dtype=torch.float64)], [(1, 2), (3, 4)]


@case("equal", _nests)
def tensors_in_dicts_and_lists() -> Any:
    def forward(self, x, added, others, sizes):
        h = self.a(x) + added["scale"] * self.b(added["texts"]) + self.words(added["times"])
        return h * others[0] * sizes[1][0]

    return net(forward, a=line(), b=line(), words=nn.Embedding(7, 6).double())
