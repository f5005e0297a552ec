"""Batch normalisation, arguments, the training mode, state and random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from torch_cases import IMAGES, F, case, line, net, nn, torch

# ---- batch normalisation ---------------------------------------------------------------------------------------------


def _normed(**options: Any) -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU())


@case("equal", IMAGES)
def batch_norm() -> Any:
    return _normed(eps=1e-3, momentum=0.3)


@case("equal", IMAGES)
def batch_norm_kept_in_evaluation() -> Any:
    made = _normed()
    made[1].eval()
    return made


@case("equal", IMAGES)
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


@case("equal", IMAGES)
def batch_norm_without_statistics() -> Any:
    return _normed(track_running_stats=False)


@case("refused", IMAGES)
def batch_norm_without_momentum() -> Any:
    return _normed(momentum=None)


@case("equal", IMAGES)
def batch_norm_without_affine() -> Any:
    return _normed(affine=False)


@case("equal", IMAGES)
def batch_norm_twice() -> Any:
    return net(lambda self, x: self.n(self.c(self.n(x))), c=nn.Conv2d(3, 3, 1), n=nn.BatchNorm2d(3))


@case("equal", IMAGES)
def siamese_networks() -> Any:
    """SimSiam: one network of two views of each image, with norms of either kind, and no gradient of one side."""

    def forward(self, x):
        first, second = (self.encoder(view).mean((2, 3)) for view in (x, x.flip(3) * 1.5))
        ahead, behind = self.predictor(first), self.predictor(second)
        return F.cosine_similarity(ahead, second.detach()) + F.cosine_similarity(behind, first.detach())

    plain = nn.BatchNorm2d(5, affine=False)
    return net(
        forward, encoder=nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.4), nn.ReLU(), nn.Conv2d(4, 5, 1), plain),
        predictor=nn.Sequential(line(5, 5), nn.BatchNorm1d(5), nn.Tanh(), line(5, 5)),
    )


@case("equal", IMAGES)
def frozen_norms_of_a_fine_tuned_network() -> Any:
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False))
    for norm in (made[1], made[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.eval()
    made[1].requires_grad_(False)
    return made


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


# ---- arguments -------------------------------------------------------------------------------------------------------


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


THREES = torch.full((6,), 3.0, dtype=torch.float64)


@case("equal")
def default_that_is_a_tensor() -> Any:
    return net(lambda self, x, shift=THREES: self.a(x) + shift, a=line())


@case("equal")
def asks_whether_it_is_a_tensor() -> Any:
    return net(lambda self, x: self.a(x) if isinstance(x, torch.Tensor) else x * 2, a=line())


# ---- branches, state, random numbers ---------------------------------------------------------------------------------


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


@case("equal")
def dropout_of_no_channels() -> Any:
    return nn.Sequential(line(), nn.Unflatten(1, (2, 3)), nn.Dropout1d(0.0), line(3, 2))


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
def draws_with_python() -> Any:
    return net(lambda self, x: self.a(x) * random.random(), a=line())


@case("refused")
def draws_with_numpy() -> Any:
    return net(lambda self, x: self.a(x) * np.random.rand(), a=line())  # noqa: NPY002  as people do


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


@case("equal")
def buffers_in_lists_of_modules() -> Any:
    """Lists are torch.nn's, but no layers: what lies in them may read its buffers."""
    def forward(self, x):
        for part in (*self.parts, self.named["a"]):
            x = part(x)
        return x

    def made():
        return net(lambda self, x: self.a(x) * self.scale[None, :6], a=line(), scale=torch.rand(1, 6).squeeze(0) + 0.5)

    return net(forward, parts=nn.ModuleList([made(), made()]), named=nn.ModuleDict({"a": made()}))


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


# ---- buffers that forward fills --------------------------------------------------------------------------------------


class Table(nn.Module):
    """A layer with a table that forward makes where there is none of the size that it needs; and with what is no such table."""

    def __init__(self, word: str = "") -> None:
        super().__init__()
        self.word, self.a = word, nn.Linear(6, 6)
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.word == "counts":
            self.table = self.table + 1
        elif self.word == "of an input":
            self.table = x.detach().mean(0)
        elif self.word == "anew" or len(self.table) != x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype)
        if self.word == "counts in place":
            self.table.add_(1)
        return self.a(x) * self.table


@case("equal")
def table_that_forward_fills() -> Any:
    return Table()


@case("equal")
def tables_that_forward_fills_in_layers_alike() -> Any:
    return nn.Sequential(Table(), Table(), Table())


@case("refused")
def buffer_that_counts() -> Any:
    return Table("counts")


@case("refused")
def buffer_that_counts_in_place() -> Any:
    return Table("counts in place")


@case("refused")
def buffer_made_of_an_input() -> Any:
    return Table("of an input")


@case("refused")
def buffer_made_anew_each_time() -> Any:
    return Table("anew")
