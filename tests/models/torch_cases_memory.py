"""What changes in place, hooks, patches, subclasses."""

from __future__ import annotations

from typing import Any

from torch.nn.utils import parametrizations, parametrize
from torch_cases import CASES, Case, F, case, line, net, nn, rows, torch

# ---- in place --------------------------------------------------------------------------------------------------------


@case("equal")
def relu_in_place_then_operand_again() -> Any:
    def forward(self, x):
        h = self.a(x)
        y = self.act(h)
        return self.b(y) + h  # h is what relu made of it

    return net(forward, a=line(), b=line(), act=nn.ReLU(inplace=True))


@case("equal")
def functional_relu_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        F.relu(h, inplace=True)
        return h * 2

    return net(forward, a=line())


@case("equal")
def add_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.add_(1.0).mul_(2.0)
        h += self.b(x)
        h *= 0.5
        h -= 1
        h /= 3
        return h

    return net(forward, a=line(), b=line())


@case("equal")
def two_names_of_one_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h
        k += 1
        return h + k

    return net(forward, a=line())


@case("equal")
def in_place_on_a_view_then_base() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.view(-1).mul_(2.0)
        return h

    return net(forward, a=line())


@case("equal")
def in_place_on_a_slice_then_base() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 0].add_(1.0)
        return h

    return net(forward, a=line())


@case("equal")
def in_place_on_base_then_view() -> Any:
    def forward(self, x):
        h = self.a(x)
        v = h[:, :3]
        h += 1
        return v * 2

    return net(forward, a=line())


@case("equal")
def plus_equals_on_a_slice() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 1:3] += 1
        return h

    return net(forward, a=line())


@case("equal")
def parts_changed_in_place_one_after_the_other() -> Any:
    def forward(self, x):
        h = torch.stack([self.a(x), x, self.a(x) * 2])
        h[1:] += h[0]
        h[:2] *= 0.5
        part = h[1:]
        part.sub_(x)
        return h.sum(0) + part[0]

    return net(forward, a=line())


@case("equal")
def an_older_view_of_a_part_that_is_changed() -> Any:
    def forward(self, x):
        h = self.a(x) * 1
        older = h[:, 2:]
        h[:, 1:3] += 1
        return h.sum(1) + older.sum(1)

    return net(forward, a=line())


@case("refused")
def plus_equals_on_a_part_of_the_input() -> Any:
    def forward(self, x):
        x[:, 1:3] += 1
        return self.a(x)

    return net(forward, a=line())


@case("equal")
def index_assignment() -> Any:
    def forward(self, x):
        h = self.a(x)
        h[:, 0] = 0.0
        return h

    return net(forward, a=line())


@case("refused")
def input_changed_in_place() -> Any:
    def forward(self, x):
        x += 1
        return self.a(x)

    return net(forward, a=line())


@case("refused")
def relu_in_place_on_the_input() -> Any:
    return nn.Sequential(nn.ReLU(inplace=True), line())


@case("refused")
def in_place_on_a_view_of_the_input() -> Any:
    return net(lambda self, x: self.a(x.view(4, 6).mul_(2.0)) + x.sum(), a=line())


@case("refused")
def chunks_changed_in_place() -> Any:
    def forward(self, x):
        h = self.a(x)
        p, q = h.chunk(2, 1)
        p = F.relu(p, inplace=True)
        return torch.cat([p, q], 1) + h

    return net(forward, a=line())


@case("equal")
def clone_keeps_the_original() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.clone()
        k.add_(1.0)
        return h * k

    return net(forward, a=line())


@case("equal")
def contiguous_may_be_the_same_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.contiguous()
        k += 1
        return h * 2

    return net(forward, a=line())


@case("equal")
def reshape_shares_memory() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.reshape(2, 12).add_(1.0)
        return h

    return net(forward, a=line())


@case("equal")
def reshape_of_a_transpose_is_a_copy() -> Any:
    def forward(self, x):
        h = self.a(x)
        k = h.t().reshape(-1)
        k = k.add_(1.0)
        return h.sum() + k.reshape(6, 4).t()

    return net(forward, a=line())


@case("refused")
def writes_with_out() -> Any:
    def forward(self, x):
        h = self.a(x)
        torch.add(h, 1.0, out=h)
        return h

    return net(forward, a=line())


# ---- hooks, patches, parametrizations --------------------------------------------------------------------------------


@case("refused")
def forward_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[0].register_forward_hook(lambda m, a, y: y * 2)
    return made


@case("refused")
def forward_hook_of_the_whole() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made.register_forward_hook(lambda m, a, y: y * 2)
    return made


@case("refused")
def forward_pre_hook() -> Any:
    made = nn.Sequential(line(), nn.Sequential(line()))
    made[1].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    return made


@case("refused")
def full_backward_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return made


@case("refused")
def full_backward_pre_hook() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    return made


@case("refused")
def hook_on_a_parameter() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[0].weight.register_hook(lambda g: g * 2)
    return made


@case("refused")
def hook_on_a_tensor() -> Any:
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda g: g * 2)
        return h * 2

    return net(forward, a=line())


@case("refused")
def patched_forward_of_a_layer() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[1].forward = lambda x: x * 3
    return made


@case("refused")
def patched_forward_of_the_whole() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made.forward = lambda x: x * 3
    return made


@case("refused")
def patched_method() -> Any:
    class Has(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3)

        def forward(self, x):
            return self.conv(x)

    made = Has()
    made.conv._conv_forward = lambda x, w, b: F.conv2d(x, w * 2, b)
    return made


CASES["patched_method"] = Case("patched_method", patched_method, rows(2, 2, 5, 5), "refused")


@case("equal")
def weight_norm() -> Any:
    return nn.Sequential(parametrizations.weight_norm(line()), nn.Tanh())


@case("refused")
def old_weight_norm() -> Any:
    return nn.Sequential(nn.utils.weight_norm(line()), nn.Tanh())


@case("refused")
def spectral_norm() -> Any:
    return nn.Sequential(parametrizations.spectral_norm(line()), nn.Tanh())


@case("refused")
def parametrized() -> Any:
    class Twice(nn.Module):
        def forward(self, w):
            return w * 2

    made = nn.Sequential(line())
    parametrize.register_parametrization(made[0], "weight", Twice())
    return made


@case("refused")
def own_call() -> Any:
    class Twice(nn.Module):
        def __call__(self, x):
            return 2 * super().__call__(x)

        def forward(self, x):
            return x

    return nn.Sequential(line(), Twice())


# ---- subclasses ------------------------------------------------------------------------------------------------------


@case("equal")
def subclass_with_another_forward() -> Any:
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    return nn.Sequential(Twice(6, 6), nn.Tanh())


@case("equal")
def subclass_that_changes_nothing() -> Any:
    class Mine(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 5)

        def extra_repr(self) -> str:
            return "mine"

    return nn.Sequential(Mine(), nn.Tanh())


@case("equal", rows(2, 3, 5, 5))
def subclass_of_batch_norm_with_another_forward() -> Any:
    class Mine(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2

    return nn.Sequential(nn.Conv2d(3, 3, 1), Mine(3))


@case("equal", rows(2, 3, 5, 5))
def subclass_with_another_inner_method() -> Any:
    class Mine(nn.Conv2d):
        def _conv_forward(self, x, w, b):
            return super()._conv_forward(x, w - w.mean(), b)

    return nn.Sequential(Mine(3, 3, 3))


@case("equal")
def subclass_by_a_mixin() -> Any:
    class Doubles:
        def forward(self, x):
            return super().forward(x) * 2

    class Mine(Doubles, nn.Tanh):
        pass

    return nn.Sequential(line(), Mine())
