"""What tokens say of one another: which are special, where the last special one was, and masks that are chosen by masks."""

from __future__ import annotations

from typing import Any

from torch_cases import case, ids, line, net, nn, rows, torch


def _embedded(of: Any, places: int = 12, **parts: Any) -> Any:
    """A module that embeds tokens, and the integers that ``of`` makes of them."""
    return net(
        lambda self, t: self.out(self.words(t) + self.places(of(self, t))), words=nn.Embedding(7, 6),
        places=nn.Embedding(places, 6), out=line(), **parts,
    )


@case("equal", ids(7, 4, 9))
def blocks_between_special_tokens() -> Any:
    def positions(self, t):  # as Grounding DINO counts them
        at = torch.arange(t.shape[1])[None].expand(t.shape)
        special = torch.isin(t, self.special)
        before = torch.cummax(torch.where(special, at, torch.full((), -1)), dim=1)[0]
        behind = torch.cummin(torch.where(special, at, torch.tensor(9)).flip(1), dim=1)[0].flip(1)
        return torch.where(behind != 9, torch.clamp(at - before, min=1, max=5), 0)

    return _embedded(positions, special=torch.tensor([1, 4, 5]))


@case("equal", ids(7, 4, 9))
def tokens_that_are_not_among_others() -> Any:
    return _embedded(lambda self, t: torch.isin(t, self.special, invert=True).long(), special=torch.tensor([[1], [3]]))


@case("equal", ids(7, 4, 9))
def places_of_the_highest_token_so_far() -> Any:
    return _embedded(lambda self, t: torch.cummax(t, dim=1).indices)


@case("equal", ids(7, 4, 9))
def places_of_the_lowest_token_so_far() -> Any:
    return _embedded(lambda self, t: t.cummin(-1)[1])


@case("equal", rows(4, 5, 6))
def highest_numbers_so_far() -> Any:
    return net(lambda self, x: torch.cummax(self.a(x), 1).values * torch.cummin(self.a(x), -1)[0], a=line())


@case("equal", rows(4, 5, 6))
def places_of_the_highest_numbers_so_far() -> Any:
    return net(lambda self, x: self.places(torch.cummax(self.a(x), 1).indices), a=line(), places=nn.Embedding(6, 6))


@case("equal", ids(7, 4, 9))
def masks_chosen_by_masks() -> Any:
    def forward(self, t):
        seen = torch.where(t > 3, t < 6, t == 1) | torch.where(t == 2, True, self.fixed)
        return self.out(self.words(t) * seen[..., None])

    return net(forward, words=nn.Embedding(7, 6), out=line(), fixed=torch.arange(9) % 4 == 0)


@case("equal")
def where_as_a_method() -> Any:
    """Its order of arguments is not that of the function."""
    return net(lambda self, x: self.a(x).where(self.m, 0.5) + x.where(x > 0, self.a(x)), a=line(), m=torch.arange(6) % 2 == 0)


@case("equal", rows(2, 5, 6))
def infinities_where_a_fixed_mask_is() -> Any:
    def forward(self, x):  # as Longformer hides what is beyond its window
        scores = self.a(x) @ x.transpose(1, 2)
        return torch.full_like(scores, -torch.inf).where(self.m, scores).softmax(-1)

    return net(forward, a=line(), m=torch.ones(5, 5, dtype=torch.bool).triu(1))


@case("equal")
def a_fixed_mask_in_the_type_of_scores() -> Any:
    return net(lambda self, x: (h := self.a(x)) + self.m.type_as(h).masked_fill(self.m, -2.5), a=line(), m=torch.arange(6) % 2 == 0)


@case("equal")
def logits_with_a_bound() -> Any:
    return net(lambda self, x: torch.special.logit(self.a(x).sigmoid(), eps=1e-3), a=line())


class _Turning(nn.Conv1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


@case("equal", rows(3, 8, 6))
def a_convolution_with_a_forward_of_its_own() -> Any:
    return net(lambda self, x: self.head(self.a(x)), a=line(), head=_Turning(6, 5, 3, padding=1))


def _attending(**options: Any) -> Any:
    def forward(self, x):
        x = x.transpose(0, 1)
        each = torch.cat((self.q.bias, self.k.bias, self.v.bias))
        given = {"q_proj_weight": self.q.weight, "k_proj_weight": self.k.weight, "v_proj_weight": self.v.weight}
        y, weights = nn.functional.multi_head_attention_forward(
            x, x, x, 6, 2, None, each, None, None, False, 0.0, self.out.weight, self.out.bias, self.training,
            use_separate_proj_weight=True, **given, **options,
        )
        return y.transpose(0, 1) if weights is None else y.transpose(0, 1) * weights.reshape(2, -1).square().sum(1)[:, None, None]

    return net(forward, q=line(), k=line(), v=line(), out=line())


@case("equal", rows(2, 5, 6))
def attention_by_function() -> Any:
    return _attending(attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1), need_weights=False)


@case("equal", rows(2, 5, 6))
def attention_by_function_with_a_bias_of_each_head() -> Any:
    return _attending(attn_mask=torch.arange(100, dtype=torch.float64).reshape(4, 5, 5) / 50)


@case("equal", rows(2, 5, 6))
def attention_by_function_with_weights_of_each_head() -> Any:
    padded = torch.arange(5)[None] >= torch.tensor([[4], [5]])
    return _attending(key_padding_mask=padded, average_attn_weights=False)
