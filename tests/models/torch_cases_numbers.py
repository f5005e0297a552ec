"""Rests of divisions, determinants, reductions to places, bags of rows."""

from __future__ import annotations

from typing import Any

from torch_cases import CASES, Case, case, ids, line, net, nn, rows, simple, torch

# ---- rests ---------------------------------------------------------------------------------------------------------------

for _name, _function in {
    "rest_of_a_number": lambda x: x % 0.3, "rest_of_its_own": lambda x: torch.remainder(x, 1 + x.detach() ** 2),
    "rest_of_rows": lambda x: torch.remainder(x, 0.4 + x[:1].sigmoid()), "rest_with_its_sign": lambda x: x.fmod(0.7),
    "divided_and_rounded": lambda x: x + torch.div(x, 0.3, rounding_mode="floor") + (x.detach() * 3) // 1,
    "divided_and_cut": lambda x: x + torch.div(x, 0.3, rounding_mode="trunc"),
    "sums_of_exponentials_so_far": lambda x: torch.logcumsumexp(x * 30, 1) + x.logcumsumexp(0),
}.items():
    simple(_function, name=_name)


@case("equal", ids(90, 4, 5))
def hashes_of_tokens() -> Any:
    """CANINE's: tables of rows that a number of primes choose."""

    def forward(self, t):
        each = [table(((t + 1) * prime) % 7) for table, prime in zip(self.tables, (31, 43, 59))]
        return self.out(torch.cat(each, -1) + self.halves(t // 10) + self.rests(torch.fmod(t - 40, 3) + 2))

    return net(
        forward, tables=nn.ModuleList(nn.Embedding(7, 2) for _ in range(3)), halves=nn.Embedding(9, 6), rests=nn.Embedding(5, 6),
        out=line(),
    )


@case("equal")
def between_bounds_that_are_tensors() -> Any:
    return net(
        lambda self, x: torch.clamp(self.a(x), self.least, self.most.abs()).clip(min=x) + self.a(x).clamp(max=self.alone), a=line(),
        least=torch.full((6,), -0.3), most=nn.Parameter(torch.rand(6)), alone=torch.tensor(0.2),
    )


# ---- determinants ----------------------------------------------------------------------------------------------------------


@case("equal")
def turned_by_a_trained_matrix() -> Any:
    """Glow's 1 x 1 convolution: its determinant is part of the likelihood."""

    def forward(self, x):
        return self.a(x) @ self.turn, torch.slogdet(self.turn)[1].reshape(1) + torch.linalg.slogdet(self.turn).logabsdet

    return net(forward, a=line(), turn=nn.Parameter(torch.eye(6) + 0.3 * torch.randn(6, 6)))


@case("equal", rows(4, 3, 3))
def determinants_of_samples() -> Any:
    def forward(self, x):
        square = self.a(x)
        positive = square @ square.transpose(1, 2) + torch.eye(3, dtype=x.dtype)
        return torch.det(square), torch.logdet(positive), torch.linalg.det(positive), torch.linalg.slogdet(square)[0]

    return net(forward, a=line(3, 3))


@case("equal", rows(5, 3))
def likelihood_under_a_normal_prior() -> Any:
    """RealNVP's: its covariance is fixed, and a triangular system of equations is solved for each sample."""

    def forward(self, x):
        square = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]], dtype=x.dtype)
        return torch.distributions.MultivariateNormal(torch.ones(3, dtype=x.dtype), square).log_prob(self.a(x))

    return net(forward, a=line(3, 3))


# ---- reductions to places --------------------------------------------------------------------------------------------------


def _reduced(reduce: str, include_self: bool, into: str) -> Any:
    def forward(self, x, at):
        h = self.a(x)
        own = torch.zeros_like(h[:, :4]) if into == "zeros" else h[:, :4] * 1.5
        index = at[:, :, None].expand(-1, -1, h.shape[2])
        index = index + self.places if into == "apart" else index
        return self.b(own.scatter_reduce(1, index, h, reduce, include_self=include_self))

    return net(forward, a=line(), b=line(), places=torch.randint(2, (1, 5, 6)))


for _reduce in ("sum", "mean", "amax", "amin", "prod"):
    for _self in (True, False):
        for _into in ("zeros", "own", "apart"):
            _case = f"reduced_{_reduce}_{_into}{'_with_itself' * _self}"
            CASES[_case] = Case(
                _case, lambda given=(_reduce, _self, _into): _reduced(*given),
                lambda: (*rows(2, 5, 6)(), torch.randint(3, (2, 5))), "equal",
            )


@case("equal", lambda: (torch.randn(7, 6, dtype=torch.float64), torch.randint(4, (7,))))
def messages_that_nodes_get() -> Any:
    """What a graph network takes the largest of."""

    def forward(self, x, at):
        sent = self.a(x)
        got = torch.full((4, 6), -1.0, dtype=x.dtype).scatter_reduce(0, at[:, None].expand(-1, 6), sent, "amax", include_self=False)
        return self.b(got)

    return net(forward, a=line(), b=line())


# ---- bags ------------------------------------------------------------------------------------------------------------------


for _mode in ("sum", "mean", "max"):
    for _last in (True, False):
        _case = f"bags_by_where_they_begin_{_mode}{'_and_end' * _last}"
        CASES[_case] = Case(
            _case, lambda mode=_mode, last=_last: net(
                lambda self, t, begins: self.out(self.bag(t, begins)), out=line(),
                bag=nn.EmbeddingBag(9, 6, mode=mode, include_last_offset=last),
            ),
            lambda last=_last: (torch.randint(9, (11,)), torch.tensor([0, 2, 2, 7, 11][: 5 if last else 4])), "equal",
        )


@case("equal", lambda: (torch.randint(9, (11,)), torch.tensor([0, 3, 4]), torch.rand(11, dtype=torch.float64)))
def bags_by_weight() -> Any:
    return net(
        lambda self, t, begins, weights: self.out(self.bag(t, begins, weights)),
        bag=nn.EmbeddingBag(9, 6, mode="sum"), out=line(),
    )
