"""Random numbers that forward draws: for each sample, or not."""

from __future__ import annotations

from typing import Any

from torch_cases import case, line, net, nn, rows, simple, torch

for _name, _function in {
    "noise_is_added": lambda x: x + torch.randn_like(x),
    "noise_of_a_shape": lambda x: x * torch.rand(x.shape[0], 1) + torch.randn(x.shape, dtype=x.dtype),
    "several_draws": lambda x: x + torch.randn_like(x) - torch.rand_like(x) * 0.5,
    "normal_of_a_mean": lambda x: x + torch.normal(0.5, 2.0, (4, 6)).to(x.dtype) * torch.normal(x, 0.1),
    "bernoulli_of_a_number": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "bernoulli_of_rates": lambda x: x * torch.bernoulli(torch.full((4, 6), 0.4, dtype=x.dtype)),
    "bernoulli_of_what_is_computed": lambda x: x * torch.bernoulli(x.sigmoid()),
    "drawn_in_place": lambda x: x + torch.zeros_like(x).uniform_(-1, 1) * torch.empty(4, 6).normal_(std=0.5),
    "integers_choose_rows": lambda x: x * torch.linspace(0, 1, 7, dtype=x.dtype)[torch.randint(0, 7, (4,))][:, None],
    "sorted": lambda x: x.sort(1)[0] * x.sort(0, descending=True)[0] + x.argsort(1) * x,
    "sampled_around_a_mean": lambda x: x[:, :3] + torch.exp(0.5 * x[:, 3:]) * torch.randn_like(x[:, :3]),
}.items():
    simple(_function, name=_name)
for _name, _function in {
    "noise_of_no_samples": lambda x: x * torch.randn(6, dtype=x.dtype),
    "an_order_of_samples": lambda x: x[torch.randperm(4)],
    "chosen_by_chance": lambda x: x[:, torch.multinomial(torch.ones(6), 3)],
    "by_chance_or_not": lambda x: x * 2 if torch.rand(()) < 0.5 else x,
}.items():
    simple(_function, "refused", name=_name)


@case("equal", rows(4, 8, 6))
def rows_are_masked_by_chance() -> Any:
    """As masked autoencoders choose what they keep."""
    def forward(self: Any, x: Any) -> Any:
        h = self.a(x)
        order = torch.argsort(torch.rand(4, 8), dim=1)
        back = torch.argsort(order, dim=1)
        kept = torch.gather(h, 1, order[:, :3].unsqueeze(-1).repeat(1, 1, 6))
        full = torch.cat([kept, self.token.repeat(4, 5, 1)], 1)
        mask = torch.ones(4, 8)
        mask[:, :3] = 0
        mask = torch.gather(mask, 1, back)
        return torch.gather(full, 1, back.unsqueeze(-1).repeat(1, 1, 6)) * (1 + mask.unsqueeze(-1)) + self.b(h)

    return net(forward, a=line(), b=line(), token=nn.Parameter(torch.randn(1, 1, 6)))
