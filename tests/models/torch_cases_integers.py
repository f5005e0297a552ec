"""Integers that are computed from inputs: positions that are counted, numbers beside them."""

from __future__ import annotations

from typing import Any

from torch_cases import case, ids, line, net, nn, rows, torch


def _counting(positions: Any) -> Any:
    """A module that embeds tokens, and what ``positions`` makes of them."""
    return net(
        lambda self, t: self.out(self.words(t) + self.places(positions(t))), words=nn.Embedding(7, 6), places=nn.Embedding(9, 6),
        out=line(),
    )


@case("equal", ids(3, 4, 5))
def positions_counted_from_tokens() -> Any:
    def positions(t):
        mask = t.ne(1).int()
        return ((torch.cumsum(mask, dim=1).type_as(mask) + 0) * mask).long() + 1

    return _counting(positions)


@case("equal", ids(3, 4, 5))
def positions_counted_backwards() -> Any:
    return _counting(lambda t: 5 - (t == 2).cumsum(1, dtype=torch.int64))


@case("equal", ids(3, 4, 5))
def integers_as_floats() -> Any:
    def forward(self, t):
        count = (t > 0).long().cumsum(-1) - 1
        return self.out(self.words(t) * (count.double() / 3)[..., None] + (count * 2).to(torch.float64)[..., None])

    return net(forward, words=nn.Embedding(7, 6), out=line())


@case("equal", ids(3, 4, 5))
def types_of_tokens_that_are_all_alike() -> Any:
    def forward(self, t):
        kinds = torch.gather(self.kinds.expand(t.shape[0], -1), dim=1, index=(t > 0).cumsum(1))
        return self.out(self.words(t) + self.sorts(kinds))

    return net(
        forward, words=nn.Embedding(7, 6), sorts=nn.Embedding(2, 6), out=line(), kinds=torch.ones(1, 9, dtype=torch.long)
    )


@case("equal", ids(3, 4, 5))
def types_of_tokens_by_position() -> Any:
    def forward(self, t):
        kinds = torch.gather(self.kinds.expand(t.shape[0], -1), dim=1, index=(t > 0).cumsum(1))
        return self.out(self.words(t) + self.sorts(kinds))

    return net(forward, words=nn.Embedding(7, 6), sorts=nn.Embedding(9, 6), out=line(), kinds=torch.arange(9)[None])


@case("refused", ids(3, 4, 5))
def short_integers_that_overflow() -> Any:
    return _counting(lambda t: ((t.to(torch.int8) * 100).long() + 150) // 50)


@case("equal", ids(3, 4, 5))
def integers_of_floats() -> Any:
    return net(lambda self, t: self.out(self.words(t)) * (3 * self.words(t)).long(), words=nn.Embedding(7, 6), out=line())


@case("equal", ids(3, 4, 5))
def rows_of_a_fixed_table() -> Any:
    def forward(self, t):
        places = (t > 0).cumsum(1) + 1
        return self.out(self.words(t) + self.table.index_select(0, places.view(-1)).view(*t.shape, -1).detach())

    return net(forward, words=nn.Embedding(7, 6), out=line(), table=torch.arange(54, dtype=torch.float64).reshape(9, 6).sin())


@case("equal", ids(3, 4, 5))
def other_tokens_where_a_mask_says() -> Any:
    def forward(self, t):
        return self.out(self.words(torch.where(t > 1, t, 0) + torch.where(t == 1, t, 4)))

    return net(forward, words=nn.Embedding(7, 6), out=line())


@case("equal", rows(2, 3, 5, 6))
def scores_at_the_distance_of_two_places() -> Any:
    def forward(self, x):
        far = (torch.arange(5)[:, None] - torch.arange(5)[None]).clamp(-2, 2) + 2
        return self.a(x).gather(-1, far.expand(2, 3, 5, 5)).softmax(-1)

    return net(forward, a=line())


@case("equal", rows(2, 3, 5, 6))
def places_that_differ_by_sample() -> Any:
    return net(lambda self, x: self.a(x).gather(-1, self.places), a=line(), places=torch.arange(150).reshape(2, 3, 5, 5) % 6)


@case("equal", ids(7, 4, 5))
def fixed_integers_in_the_type_of_a_parameter() -> Any:
    """Gemma 4's table of positions, by a product with ones and zeros."""

    def forward(self, t):
        each = torch.nn.functional.one_hot(torch.arange(t.shape[1]) // 2, 4).to(self.table)
        return self.out(self.words(t) + each @ self.table)

    return net(forward, words=nn.Embedding(7, 6), table=nn.Parameter(torch.randn(4, 6)), out=line())


@case("equal", ids(7, 4, 5))
def prompts_of_another_integer_type() -> Any:
    """CPM-Ant's: fixed tokens of 32 bits before the text."""

    def forward(self, t):
        prompt = torch.arange(3, dtype=torch.int32).repeat(t.shape[0], 1)
        return self.out(self.words(torch.cat((prompt, t), 1)))

    return net(forward, words=nn.Embedding(7, 6), out=line())
