"""Entries that are taken from, added to or put at places that forward computes: graphs, routed tokens, actions, schedules."""

from __future__ import annotations

from typing import Any

from torch_cases import case, ids, line, net, nn, rows, torch


def _edges() -> Any:
    return torch.randn(9, 6, dtype=torch.float64), torch.randint(9, (2, 14))


@case("equal", _edges)
def messages_along_edges() -> Any:
    """Means of the neighbours' messages."""
    def forward(self, x, edges):
        source, target = edges
        sums = torch.zeros_like(x).scatter_add_(0, target.unsqueeze(-1).expand(-1, 6), self.a(x)[source])
        degree = torch.zeros(9, dtype=x.dtype).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        return x + sums / degree.clamp(min=1)[:, None] + self.a(x).index_add(1, target[:2].clamp(max=5), x[:, :2])

    return net(forward, a=line())


def _routed(change: Any) -> Any:
    def forward(self, x):
        scores = self.router(x).squeeze(-1)
        top, at = scores.topk(3, dim=1)
        wide = at.unsqueeze(-1).expand(-1, -1, 6)
        return change(x, wide, self.a(torch.gather(x, 1, wide)) * top.sigmoid().unsqueeze(-1))

    return net(forward, a=line(), router=line(6, 1))


@case("equal", rows(4, 8, 6))
def tokens_that_a_router_takes_and_adds_to() -> Any:
    return _routed(lambda x, at, y: x.scatter_add(1, at, y))


@case("equal", rows(4, 8, 6))
def tokens_that_a_router_takes_and_replaces() -> Any:
    return _routed(lambda x, at, y: x.scatter(1, at, y))


@case("equal", rows(4, 6))
def only_the_largest_activations() -> Any:
    def forward(self, x):
        h = self.a(x)
        values, at = h.topk(2, dim=-1)
        return self.b(torch.zeros_like(h).scatter_(-1, at, values)) + h.scatter(1, at, 0.5)

    return net(forward, a=line(), b=line())


@case("equal", lambda: (torch.randn(4, 3, 6, dtype=torch.float64), torch.randint(3, (4,)), torch.randint(6, (4,))))
def chosen_actions() -> Any:
    def forward(self, x, a, b):
        q, n = self.a(x), torch.arange(4)
        columns = q[:, :, b].sum((1, 2), keepdim=True)[:, 0] + x.index_select(2, b).sum(1).sum()
        return q[n, a] + q[n, a, b][:, None] + columns + q[1, a]

    return net(forward, a=line())


@case("equal", lambda: (torch.randn(4, 6, dtype=torch.float64), torch.randint(20, (4,))))
def noise_of_a_schedule() -> Any:
    def forward(self, x, t):
        taken = self.levels.gather(-1, t).reshape(4, 1)
        return self.a(x * taken) + self.steps.gather(0, t)[:, None] + self.a(x).gather(1, t[:3, None].clamp(max=5)).sum()

    return net(forward, a=line(), levels=torch.linspace(0.1, 1, 20), steps=nn.Parameter(torch.randn(20)))


@case("equal", ids(5, 6))
def one_hot_in_floats() -> Any:
    """Also of labels that are named twice."""
    def forward(self, t):
        hot = torch.zeros(6, 5, dtype=torch.float64).scatter_(1, t.view(-1, 1), 1.0)
        several = torch.zeros(2, 5, dtype=torch.float64).scatter_(1, t.view(2, 3), 0.5)
        return (hot @ self.e.weight) * (1 - hot.sum(0, keepdim=True).mean()) + (several @ self.e.weight).sum(0)

    return net(forward, e=nn.Embedding(5, 6))


@case("equal")
def rounded_straight_through() -> Any:
    def forward(self, x):
        h = self.a(x)
        levels = h + ((h * 4).round() / 4 - h).detach()
        return levels * torch.sign(h) + torch.floor(h * 3) + h.ceil() - torch.trunc(x * 2) * h

    return net(forward, a=line())


@case("equal")
def fixed_places_that_differ_by_row() -> Any:
    """Also behind a dimension, and of fewer rows."""
    def forward(self, x):
        h, at = self.a(x), torch.tensor([[0, 5, 2], [3, 3, 1], [4, 0, 0], [1, 2, 5]])
        middle = h.view(4, 2, 3).gather(1, at[:, None] // 3).sum()
        return h.gather(1, at).sum(1, keepdim=True) + h.gather(0, at.T % 4)[:, :1].sum() + middle

    return net(forward, a=line())
