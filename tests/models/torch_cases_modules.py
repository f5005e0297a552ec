"""Layers of torch.nn beyond dense ones and images: sequences, one and three dimensions, activations, sizes, normalised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_cases import CASES, Arguments, Case, F, line, net, nn, rows, simple, torch

parametrizations = nn.utils.parametrizations


def modules(word: str, arguments: Arguments, **made: Callable[[], Any]) -> None:
    for name, make in made.items():
        CASES[name] = Case(name, make, arguments, word)


def _zeros(x: Any) -> Any:
    return torch.zeros(1, x.shape[0], 5, dtype=x.dtype)


modules(
    "equal", rows(3, 4, 6),
    gru_of_two_layers=lambda: net(lambda s, x: s.r(x)[1][-1], r=nn.GRU(6, 5, 2, batch_first=True)),
    gru_both_ways_steps_first=lambda: net(lambda s, x: s.r(x)[0], r=nn.GRU(6, 5, bidirectional=True)),
    gru_from_a_state=lambda: net(lambda s, x: s.r(x, s.a(x[:, 0])[None])[0], r=nn.GRU(6, 5, batch_first=True), a=line(6, 5)),
    lstm_both_ways=lambda: net(
        lambda s, x: torch.cat((s.r(x)[0][:, -1], s.q(x)[1][0][-1]), 1),
        r=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), q=nn.LSTM(6, 5, batch_first=True, bidirectional=True)),
    lstm_steps_first=lambda: net(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 5)),
    lstm_from_zeros=lambda: net(lambda s, x: s.r(x, (_zeros(x), _zeros(x)))[0], r=nn.LSTM(6, 5, batch_first=True)),
    lstm_from_anothers_states=lambda: net(
        lambda s, x: s.d(x, s.e(x)[1])[0], e=nn.LSTM(6, 5, batch_first=True), d=nn.LSTM(6, 5, batch_first=True)),
    rows_of_filters=lambda: nn.Sequential(
        nn.Conv1d(4, 6, 3, 2, 1), nn.BatchNorm1d(6), nn.Conv1d(6, 4, 3, padding="same", groups=2, dilation=2, bias=False),
        nn.ConvTranspose1d(4, 6, 4, 2, 1, output_padding=1), nn.InstanceNorm1d(6, affine=True), nn.MaxPool1d(2), nn.AvgPool1d(2)),
    weight_norm_along_another_dimension=lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(4, 4, 3, groups=2, padding=1), dim=2), nn.Tanh(), nn.Conv1d(4, 2, 1)),
    weight_norm_of_rows=lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(4, 4, 3)), nn.Tanh(), parametrizations.weight_norm(nn.ConvTranspose1d(4, 6, 2, 2))),
)
modules(
    "refused", rows(3, 4, 6),
    packed_sequences=lambda: net(
        lambda s, x: nn.utils.rnn.pad_packed_sequence(
            s.r(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 2]), batch_first=True))[0], batch_first=True)[0],
        r=nn.LSTM(6, 5, batch_first=True)),
)
modules(
    "equal", rows(2, 3, 5, 6, 4),
    volumes=lambda: nn.Sequential(
        nn.Conv3d(3, 4, (3, 3, 2), (1, 2, 1), (1, 1, 0)), nn.BatchNorm3d(4), nn.Conv3d(4, 6, (3, 2, 2), (2, 1, 1), groups=2)),
    volumes_in_blocks=lambda: nn.Sequential(nn.Conv3d(3, 8, (2, 3, 4), (2, 3, 4), bias=False), nn.Flatten(2)),
    volumes_larger=lambda: net(lambda s, x: F.interpolate(s.a(x), scale_factor=2, mode="trilinear"), a=nn.Conv3d(3, 2, 1)),
)
modules(
    "equal", rows(2, 3, 4, 6),
    instance_norms=lambda: nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.Tanh(), nn.InstanceNorm2d(3)),
    group_norm_without_weights=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4, affine=False)),
    pixels_and_channels=lambda: nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.PixelShuffle(2), nn.Conv2d(2, 4, 1), nn.PixelUnshuffle(2), nn.ChannelShuffle(4)),
    prelu_of_channels=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.PReLU(4), nn.Conv2d(4, 2, 1), nn.PReLU()),
    weight_norm_of_images=lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()),
    bicubic=lambda: net(lambda s, x: F.interpolate(s.c(x), scale_factor=(1.5, 2), mode="bicubic"), c=nn.Conv2d(3, 3, 1)),
    smaller_without_aliases=lambda: net(
        lambda s, x: F.interpolate(s.c(x), size=(3, 3), mode="bilinear", antialias=True), c=nn.Conv2d(3, 3, 1)),
    nearest_of_any_size=lambda: net(lambda s, x: F.interpolate(s.c(x), size=(7, 5)), c=nn.Conv2d(3, 3, 1)),
)
modules(
    "equal", rows(),
    soft_activations=lambda: nn.Sequential(
        line(), nn.ELU(0.7), line(), nn.SELU(), nn.CELU(1.5), line(), nn.Softplus(2.0, 5.0), nn.Mish(), line(), nn.LogSigmoid(),
        nn.Tanhshrink(), line(), nn.GLU()),
    functions_of_prelu=lambda: net(lambda s, x: F.prelu(s.a(x), s.w), a=line(), w=nn.Parameter(torch.rand(6))),
)
for _name, _function in {
    "largest_of_all": lambda x: x * x.max(), "largest_in_rows": lambda x: x - torch.max(x, dim=-1, keepdim=True).values,
    "least_of_some": lambda x: x.amin((0, 1)), "running_sums": lambda x: x.cumsum(1), "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, (0, 1)), "unit_vectors": lambda x: F.normalize(x, dim=-1),
    "by_their_norms": lambda x: x / x.norm(dim=-1, keepdim=True), "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
}.items():
    simple(_function, name=_name)
modules(
    "equal", lambda: (torch.tensor([3, 4, 0]), torch.randn(3, 6, dtype=torch.float64)),
    steps_of_diffusion=lambda: net(
        lambda s, t, x: s.a(x) * torch.sin((t * torch.ones(3, dtype=t.dtype))[:, None].double() * torch.arange(1, 7)), a=line()),
)
