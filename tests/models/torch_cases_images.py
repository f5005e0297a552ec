"""What networks for images have beside torch.nn's layers: norms with a forward of their own, filters that are computed, padding."""

from __future__ import annotations

from typing import Any

from torch_cases import IMAGES, F, case, line, net, nn, rows, simple, torch
from torch_cases_modules import modules

SIDES = IMAGES()[0].shape[2:]


class NormAct(nn.BatchNorm2d):
    """Batch normalisation and an activation in one, as timm writes it: with torch's forward copied into its own."""

    def forward(self, x: Any) -> Any:
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else factor
        own = self.training or (self.running_mean is None and self.running_var is None)
        kept = (self.running_mean, self.running_var) if not self.training or self.track_running_stats else (None, None)
        return F.relu(F.batch_norm(x, *kept, self.weight, self.bias, own, factor, self.eps))


class NormBeside(nn.BatchNorm2d):
    """As `NormAct`, with something more that reads or changes what it keeps."""

    def __init__(self, channels: int, word: str) -> None:
        super().__init__(channels)
        self.word = word

    def forward(self, x: Any) -> Any:
        if self.word == "reads before":
            x = x - self.running_mean[:, None, None]
        if self.word == "counts otherwise":
            self.num_batches_tracked.add_(2)
        training = self.training if self.word != "in evaluation" else False
        if self.word == "reads its counter":
            self.num_batches_tracked.add_(1)
            x = x * (1 + 0 * self.num_batches_tracked)
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training)
        if self.word == "reads behind":
            y = y + self.running_var[:, None, None]
        if self.word == "twice":
            y = F.batch_norm(y, self.running_mean, self.running_var, self.weight, self.bias, training)
        return y


modules(
    "equal", IMAGES,
    norm_with_its_own_forward=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4, momentum=0.3), nn.Conv2d(4, 2, 1), NormAct(2)),
    norms_alike=lambda: nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), NormAct(3)) for _ in range(3))),
    norm_that_is_called_twice=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), NormBeside(4, "twice")),
    norm_with_its_own_forward_that_does_nothing_more=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), NormBeside(4, "")),
)
modules(
    "refused", IMAGES,
    **{
        f"norm_that_{word.replace(' ', '_')}": lambda word=word: nn.Sequential(nn.Conv2d(3, 4, 3), NormBeside(4, word))
        for word in ("reads before", "reads behind", "counts otherwise", "reads its counter", "in evaluation")
    },
    norm_of_the_mean_of_all_steps=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4, momentum=None)),
    norm_without_weights=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4, affine=False)),
    norm_by_buffers_of_no_norm=lambda: net(
        lambda s, x: F.batch_norm(s.c(x), s.m, s.v, s.w, s.b, s.training), c=nn.Conv2d(3, 4, 1), m=torch.zeros(4), v=torch.ones(4),
        w=nn.Parameter(torch.ones(4)), b=nn.Parameter(torch.zeros(4))),
)


def _standardised(self: Any, x: Any) -> Any:
    rows_of_it = self.c.weight.reshape(1, 4, -1)
    weight = F.batch_norm(rows_of_it, None, None, weight=(self.gain * 0.3).view(-1), training=True, momentum=0.0, eps=1e-6)
    return F.conv2d(x, weight.reshape_as(self.c.weight), self.c.bias, padding=1, stride=2)


modules(
    "equal", IMAGES,
    standardised_filters=lambda: net(_standardised, c=nn.Conv2d(3, 4, 3), gain=nn.Parameter(torch.rand(4, 1, 1, 1) + 0.5)),
    norm_by_the_batch_alone=lambda: net(
        lambda s, x: F.batch_norm(s.c(x), None, None, s.w, s.b, True), c=nn.Conv2d(3, 4, 1), w=nn.Parameter(torch.rand(4)),
        b=nn.Parameter(torch.rand(4))),
    filters_of_another_name=lambda: net(
        lambda s, x: F.conv2d(x, s.k, s.b, padding="same", dilation=2), k=nn.Parameter(torch.randn(4, 3, 3, 3)),
        b=nn.Parameter(torch.randn(4))),
    filters_of_groups=lambda: net(
        lambda s, x: F.conv2d(s.c(x), s.k.tanh(), stride=(2, 1), groups=2), c=nn.Conv2d(3, 4, 1),
        k=nn.Parameter(torch.randn(6, 2, 3, 2))),
    fixed_filters=lambda: net(lambda s, x: F.conv2d(s.c(x), s.k, groups=4), c=nn.Conv2d(3, 4, 1), k=torch.rand(4, 1, 3, 3)),
    filters_of_lines=lambda: net(
        lambda s, x: F.conv1d(x.flatten(2), s.k.tanh(), s.b, dilation=2), k=nn.Parameter(torch.randn(6, 3, 3)),
        b=nn.Parameter(torch.randn(6))),
    windows=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Unfold((2, 3), padding=1, stride=2), nn.Linear(12, 2)),
    windows_by_function=lambda: net(lambda s, x: F.unfold(s.c(x), 3, dilation=2), c=nn.Conv2d(3, 4, 1)),
    windows_put_back=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Unfold(2, stride=2), nn.Fold(SIDES, 2, stride=2)),
    windows_put_back_that_overlap=lambda: net(
        lambda s, x: F.fold(F.unfold(s.c(x), 3, 2, 2, 3), SIDES, 3, 2, 2, 3), c=nn.Conv2d(3, 4, 1),
    ),
    windows_put_back_of_which_some_lie_outside=lambda: net(
        lambda s, x: F.fold(F.unfold(s.c(x), (2, 3), padding=(0, 2)), SIDES, (2, 3), padding=(0, 2)), c=nn.Conv2d(3, 4, 1),
    ),
    windows_along_two_dimensions=lambda: net(lambda s, x: s.c(x).unfold(2, 3, 2).unfold(3, 2, 2), c=nn.Conv2d(3, 4, 1)),
    every_other_of_an_odd_number=lambda: net(lambda s, x: s.c(x)[:, ::3, :, 1::2], c=nn.Conv2d(3, 4, (1, 2))),
    reflected_by_a_layer=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReflectionPad2d((2, 0, 1, 3)), nn.Conv2d(4, 2, 3)),
    edges_again=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReplicationPad2d((2, 0, 1, 3)), nn.Conv2d(4, 2, 3)),
    round_again=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.CircularPad2d((2, 0, 1, 3)), nn.Conv2d(4, 2, 3)),
    padded_and_cut=lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ZeroPad2d((1, -1, -2, 0)), nn.ConstantPad2d(1, 0.5)),
    cut_by_padding=lambda: net(lambda s, x: F.pad(s.c(x), (0, 0, -1, -2)), c=nn.Conv2d(3, 4, 1)),
    convolution_that_goes_round=lambda: nn.Sequential(nn.Conv2d(3, 4, (3, 5), padding="same", padding_mode="circular")),
    a_bias_for_each_distance=lambda: net(
        lambda s, x: s.c(x).flatten(2) + s.table[:, s.index], c=nn.Conv2d(3, 4, 1), table=nn.Parameter(torch.randn(4, 150)),
        index=(torch.arange(36) * 7) % 150),
)


@case("equal", rows(2, 3))
def many_elements_by_fixed_integers() -> Any:
    """More than a product with zeros and ones would be made for."""
    def forward(self: Any, x: Any) -> Any:
        return self.a(x) * self.table[:, self.index].sin().mean((1, 2)).sum() + self.table.mean()

    places = (torch.arange(2000) * 13 % 2100 - 7).view(50, 40)
    return net(forward, a=line(3), table=nn.Parameter(torch.randn(2, 2100)), index=places)


simple(lambda x: torch.erf(x) * torch.special.erf(0.1 * x), name="error_function")
simple(lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)), name="gelu_by_the_error_function")
simple(lambda x: torch.addcmul(x, x, x.tanh(), value=0.5), name="product_added")
simple(lambda x: x.repeat_interleave(2, dim=1, output_size=12), name="repeated_to_a_size")
simple(lambda x: torch.addcdiv(x, x.tanh(), 1 + x * x, value=-2.0), name="quotient_added")


@case("equal", rows(3, 4, 6))
def weight_of_a_convolution_of_lines_beside_it() -> Any:
    """As Mamba 2 does by itself what its layer says."""
    def forward(self: Any, x: Any) -> Any:
        return self.c(x) + F.conv1d(x, self.c.weight.squeeze(1).unsqueeze(1) * 2, groups=4) + self.d.weight.sum() * self.d.weight[0]

    return net(forward, c=nn.Conv1d(4, 4, 3, groups=4), d=nn.Conv1d(1, 2, 4))


@case("equal")
def part_of_a_copy_is_cleared() -> Any:
    """As torchvision's Swin V2 has no bias of keys."""
    def forward(self: Any, x: Any) -> Any:
        bias = self.a.bias.clone()
        bias[2:4].zero_()
        bias[5:].fill_(0.5)
        return F.linear(x, self.a.weight, bias)

    return net(forward, a=line())


@case("refused")
def part_of_a_parameter_is_cleared() -> Any:
    def forward(self: Any, x: Any) -> Any:
        with torch.no_grad():
            self.a.bias[2:4].zero_()
        return self.a(x)

    return net(forward, a=line())


@case("equal")
def part_is_cleared_behind_another_view() -> Any:
    def forward(self: Any, x: Any) -> Any:
        h = self.a(x)
        first = h[:, :3]
        h[:, 2:4].zero_()
        return self.b(h[:, 3:] + first)

    return net(forward, a=line(), b=line(3))

def _sampled(mode: str = "bilinear", padding: str = "zeros", corners: bool = False) -> Any:
    def forward(self: Any, x: Any) -> Any:
        places = self.at(x).permute(0, 2, 3, 1) * 1.5
        return F.grid_sample(self.c(x), places, mode, padding, corners)

    return net(forward, c=nn.Conv2d(3, 4, 1), at=nn.Conv2d(3, 2, (2, 3)))


modules(
    "equal", IMAGES,
    **{
        f"sampled_{mode}_{padding}_{corners}": lambda given=(mode, padding, corners): _sampled(*given)
        for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (False, True)
    },
    sampled_of_one_row=lambda: net(
        lambda s, x: F.grid_sample(s.c(x), s.at(x).permute(0, 2, 3, 1), padding_mode="reflection", align_corners=True),
        c=nn.Conv2d(3, 4, (6, 1)), at=nn.Conv2d(3, 2, 3)),
    sampled_at_fixed_places=lambda: net(
        lambda s, x: F.grid_sample(s.c(x), s.at.expand(3, -1, -1, -1), align_corners=False), c=nn.Conv2d(3, 4, 1),
        at=torch.rand(1, 2, 5, 2) * 3 - 1.5),
    sampled_from_a_weight=lambda: net(
        lambda s, x: F.grid_sample(s.w.expand(3, -1, -1, -1), s.at(x).permute(0, 2, 3, 1), align_corners=True),
        w=nn.Parameter(torch.randn(1, 4, 3, 5)), at=nn.Conv2d(3, 2, 3)),
    **{
        f"turned_images_{corners}": lambda corners=corners: net(
            lambda s, x: F.grid_sample(
                s.c(x), F.affine_grid(s.at(x.flatten(1)).reshape(3, 2, 3), (3, 4, 5, 7), corners), align_corners=corners),
            c=nn.Conv2d(3, 4, 1), at=nn.Linear(108, 6))
        for corners in (False, True)
    },
)
modules(
    "refused", IMAGES,
    sampled_blocks=lambda: net(
        lambda s, x: F.grid_sample(s.c(x)[:, :, None], s.at.expand(3, -1, -1, -1, -1), align_corners=True), c=nn.Conv2d(3, 4, 1),
        at=torch.rand(1, 2, 5, 3, 3)),
)
