"""Layers in the space of frequencies: mixed tokens, long convolutions, learned filters of images."""

from __future__ import annotations

from typing import Any

from torch_cases import case, line, net, nn, rows, torch


@case("equal", rows(4, 7, 6))
def tokens_mixed_by_waves() -> Any:
    def forward(self, x):
        mixed = torch.fft.fft(torch.fft.fft(self.a(x), dim=-1), dim=-2).real
        return mixed + torch.fft.fftn(x, dim=(1, 2)).imag + torch.fft.fft2(x, norm="ortho").abs()

    return net(forward, a=line())


@case("equal", rows(4, 7, 6))
def long_convolution() -> Any:
    """As Hyena and S4 multiply by their filters."""
    def forward(self, x):
        u, steps = self.a(x).transpose(1, 2), 7
        filters = torch.fft.rfft(self.k, n=2 * steps) / (2 * steps)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * steps) * filters, n=2 * steps, norm="forward")[..., :steps]
        return y.transpose(1, 2)

    return net(forward, a=line(), k=nn.Parameter(torch.randn(6, 5)))


@case("equal", rows(3, 5, 6, 2))
def filter_of_images() -> Any:
    def forward(self, x):
        waves = torch.fft.rfft2(self.a(x), dim=(1, 2), norm="ortho") * torch.view_as_complex(self.w)
        return torch.fft.irfft2(waves, s=(5, 6), dim=(1, 2), norm="ortho") + torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1, n=5)

    return net(forward, a=line(2, 2), w=nn.Parameter(torch.randn(5, 4, 2, 2)))


@case("equal", rows(3, 8, 6))
def operator_of_low_frequencies() -> Any:
    """Fourier neural operators, with the weights as two real ones."""
    def forward(self, x):
        waves = torch.fft.rfft(self.a(x).transpose(1, 2))[:, :, :3]
        mixed = torch.einsum("bix,iox->box", waves, torch.complex(self.re, self.im))
        return torch.fft.irfft(mixed, n=8).transpose(1, 2) + torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1).real

    return net(forward, a=line(), re=nn.Parameter(torch.randn(6, 6, 3)), im=nn.Parameter(torch.randn(6, 6, 3)))


@case("equal", rows(3, 8, 6))
def sizes_of_complex_numbers() -> Any:
    """That of 0 has the gradient 0."""
    return net(lambda self, x: torch.complex(self.a(x) * self.m, x * self.m).abs(), a=line(), m=torch.arange(6) % 2.0)
