"""Complex numbers and rotary positions, as modules of language models write them."""

from __future__ import annotations

from typing import Any

from torch_cases import case, line, net, rows, torch

ANGLES = torch.outer(torch.arange(8).double(), 100.0 ** (-torch.arange(3).double() / 3))  # of 8 positions, 3 pairs


def _turned(x: Any, table: Any) -> Any:
    """x (N, T, H, 6), whose neighbours are pairs."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(3)


@case("equal", rows(2, 5, 12))
def rotary_by_complex_numbers() -> Any:
    def forward(self, x):
        q, k = (part(x).view(2, 5, 2, 6) for part in (self.q, self.k))
        table = torch.polar(torch.ones_like(self.angles[:5]), self.angles[:5])[None, :, None]
        return (_turned(q, table) * _turned(k, table * 1.5)).sum((-1, -2))

    return net(forward, q=line(12, 12), k=line(12, 12), angles=ANGLES.clone())


@case("equal", rows(2, 5, 12))
def rotary_by_complex_numbers_heads_first() -> Any:
    def forward(self, x):
        q, k = (part(x).view(2, 5, 2, 6).transpose(1, 2) for part in (self.q, self.k))
        table = torch.polar(torch.ones_like(self.angles[:5]), self.angles[:5])[None, None]
        return _turned(q, table) @ _turned(k, table).transpose(2, 3)

    return net(forward, q=line(12, 12), k=line(12, 12), angles=ANGLES.clone())


@case("equal", rows(2, 5, 12))
def complex_tables_that_are_no_rotation() -> Any:
    def forward(self, x):
        table = torch.complex(self.angles[:5] - 1, self.angles[:5] * 0.3)[None, :, None]
        return _turned(self.q(x).view(2, 5, 2, 6), table)

    return net(forward, q=line(12, 12), angles=ANGLES.clone())


@case("equal", rows(4, 6))
def complex_arithmetic() -> Any:
    def forward(self, x):
        z = torch.view_as_complex(self.a(x).view(4, 3, 2))
        w = torch.polar(self.b(x)[:, :3].exp(), self.b(x)[:, 3:])
        both = torch.complex(z.real, w.imag).conj() - z * w * (2 - 1j) + 0.5
        return torch.view_as_real(both.unsqueeze(1).resolve_conj().contiguous()).flatten(1)

    return net(forward, a=line(), b=line())


@case("equal")
def absolute_value_of_complex_numbers() -> Any:
    return net(lambda self, x: torch.view_as_complex(self.a(x).view(4, 3, 2)).abs(), a=line())


@case("refused")
def complex_result() -> Any:
    return net(lambda self, x: torch.view_as_complex(self.a(x).view(4, 3, 2)), a=line())


@case("equal")
def complex_numbers_without_gradient() -> Any:
    def forward(self, x):
        with torch.no_grad():
            z = torch.view_as_complex(self.a(x).view(4, 3, 2)) * 1j
        return self.a(x) + torch.view_as_real(z).flatten(1)

    return net(forward, a=line())


def _by_parts(x: Any, cos: Any, sin: Any) -> Any:
    a, b = torch.chunk(x, 2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@case("equal", rows(2, 5, 12))
def rotary_by_parts() -> Any:
    def forward(self, x):
        q, k = (part(x).view(2, 5, 2, 6).transpose(1, 2) for part in (self.q, self.k))
        cos, sin = self.angles[:5].cos()[None, None], self.angles[:5].sin()[None, None]
        return _by_parts(q, cos, sin) @ _by_parts(k, cos, sin).transpose(2, 3)

    return net(forward, q=line(12, 12), k=line(12, 12), angles=ANGLES.clone())


@case("equal", rows(2, 5, 12))
def rotary_by_parts_the_other_way() -> Any:
    """The signs of a rotation by minus the angles, and one table for both waves."""
    def forward(self, x):
        q = self.q(x).view(2, 5, 2, 6)
        cos, sin = self.angles[:5].cos()[None, :, None], self.angles[:5].sin()[None, :, None]
        return _by_parts(q, cos, -sin) + _by_parts(q, sin, sin)

    return net(forward, q=line(12, 12), angles=ANGLES.clone())


def _by_neighbours(x: Any, sin: Any, cos: Any) -> Any:
    sin, cos = (torch.repeat_interleave(table[None, :, None, :], 2, 3) for table in (sin, cos))
    turned = torch.stack((-x[:, :, :, 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos + turned * sin


@case("equal", rows(2, 5, 12))
def rotary_by_neighbours() -> Any:
    def forward(self, x):
        q, k = (part(x).view(2, 5, 2, 6) for part in (self.q, self.k))
        sin, cos = self.angles[:5].sin(), self.angles[:5].cos()
        return (_by_neighbours(q, sin, cos) * _by_neighbours(k, sin, cos)).sum(-1)

    return net(forward, q=line(12, 12), k=line(12, 12), angles=ANGLES.clone())


@case("equal", rows(2, 5, 12))
def neighbours_with_tables_of_halves() -> Any:
    """The pairs of one way to write it, the tables of the other: no rotation."""
    def forward(self, x):
        q = self.q(x).view(2, 5, 2, 6)
        sin, cos = (torch.cat((wave, wave), -1)[None, :, None] for wave in (self.angles[:5].sin(), self.angles[:5].cos()))
        turned = torch.stack((-q[..., 1::2], q[..., ::2]), dim=-1).flatten(-2)
        return (q * cos + turned * sin).sum(-1)

    return net(forward, q=line(12, 12), angles=ANGLES.clone())


KINDS = {
    "rotary_by_complex_numbers": 2, "rotary_by_complex_numbers_heads_first": 2, "rotary_by_parts": 2,
    "rotary_by_neighbours": 2, "neighbours_with_tables_of_halves": 0,
    "rotary_by_parts_the_other_way": 1, "complex_tables_that_are_no_rotation": 0,
}
"""How many operators `rotary` a case becomes."""


def _kept_waves(self: Any, x: Any) -> Any:
    """A Fourier neural operator's layer: some waves of each channel by trained complex numbers, all others none."""
    waves = torch.fft.rfft2(x)
    kept = torch.zeros(x.shape[0], 4, x.shape[2], x.shape[3] // 2 + 1, dtype=waves.dtype)
    for part, rows_of in ((self.low, slice(None, 2)), (self.high, slice(-2, None))):
        kept[:, :, rows_of, :3] = torch.einsum("bixy,ioxy->boxy", waves[:, :, rows_of, :3], part)
    return torch.fft.irfft2(kept, s=x.shape[2:]) + self.skip(x)


def _spectrum(*shape: int) -> Any:
    return torch.nn.Parameter(torch.randn(*shape, dtype=torch.complex128))


@case("equal", rows(2, 3, 6, 6))
def fourier_neural_operator() -> Any:
    return net(_kept_waves, low=_spectrum(3, 4, 2, 3), high=_spectrum(3, 4, 2, 3), skip=torch.nn.Conv2d(3, 4, 1))


@case("equal", rows(2, 8, 6))
def filter_of_all_waves() -> Any:
    """GFNet's: each wave of each channel by a trained complex number."""

    def forward(self, x):
        return self.b(torch.fft.irfft(torch.fft.rfft(self.a(x), dim=1, norm="ortho") * self.filter, n=8, dim=1, norm="ortho"))

    return net(forward, a=line(), b=line(), filter=_spectrum(5, 6))


@case("equal", rows(2, 5, 12))
def complex_parameter_beside_others() -> Any:
    def forward(self, x):
        z = torch.view_as_complex(self.a(x).reshape(2, 5, 6, 2)) * self.scale + self.shift.conj()
        return z.abs(), torch.view_as_real(z @ self.turn), self.turn.real.sum(0)[None]

    return net(forward, a=line(12, 12), scale=_spectrum(6), shift=_spectrum(5, 1), turn=_spectrum(6, 3))
