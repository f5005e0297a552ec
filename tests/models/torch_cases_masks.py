"""Truth values that are given to forward: as floats and integers, joined, turned round, in sums and products, and for attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_cases import F, case, line, net, nn, torch


def words_and_mask() -> tuple[Any, ...]:
    return torch.randint(7, (4, 5)), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])


def masked(forward: Callable[..., Any]) -> Any:
    return net(forward, words=nn.Embedding(7, 6), mix=nn.MultiheadAttention(6, 2, batch_first=True), a=line()).double()


@case("equal", words_and_mask)
def means_of_what_a_given_mask_keeps() -> Any:
    def forward(self, t, mask):
        h, kept = self.words(t), mask.unsqueeze(-1).to(torch.float64)
        mean = (h * kept).sum(1) / kept.sum(1).clamp(min=1e-6)
        return mean + (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) + mask.double().mean(1, keepdim=True)

    return masked(forward)


@case("equal", words_and_mask)
def a_given_mask_behind_a_fixed_one() -> Any:
    """As a class's token stands before a text."""
    def forward(self, t, mask):
        h = torch.cat([self.words.weight[:1].expand(4, 1, 6), self.words(t)], 1)
        seen = torch.cat([torch.ones(4, 1, dtype=torch.bool), mask], 1)
        padded = F.pad(mask, (1, 0), value=True)
        mixed = self.mix(h, h, h, key_padding_mask=~seen, need_weights=False)[0]
        mixed = F.scaled_dot_product_attention(h, h, mixed, attn_mask=padded[:, None, :])
        return self.a(mixed).masked_fill(~padded[..., None], 0.5)

    return masked(forward)


@case("equal", words_and_mask)
def given_masks_among_each_other() -> Any:
    def forward(self, t, mask):
        h, other = self.words(t), t > 2
        odd = (mask ^ other) | torch.stack([mask, other], -1).all(-1) | (mask == other.roll(1, 1))
        first, second = mask.chunk(2, 1)
        early = torch.cat([second, first.flip(1)], 1) & (mask == False)  # noqa: E712
        return h * odd[..., None] + torch.where(early[..., None], h, 0.5) + mask.gather(1, t % 5)[..., None] * h

    return masked(forward)


@case("equal", words_and_mask)
def given_masks_in_sums_and_products() -> Any:
    def forward(self, t, mask):
        h, wide = self.words(t), mask[..., None]
        added = h + wide + h / (wide + 1.5) + (1 - wide.int()) * h + (~wide) * -40.0
        return added + self.words(t * mask) + self.words(mask.long()) + (mask * 2)[..., None] * (wide * (t > 3)[..., None]) * h

    return masked(forward)


@case("equal", lambda: (torch.ones(4, 5, dtype=torch.bool),))
def places_counted_from_a_given_mask() -> Any:
    """Of a mask that begins with False there is no place before the first."""
    return net(lambda self, mask: self.words(mask.cumsum(1) - 1), words=nn.Embedding(7, 6).double())


@case("refused", words_and_mask)
def as_many_rows_as_a_given_mask_has_ones() -> Any:
    return masked(lambda self, t, mask: self.words(t)[mask])
