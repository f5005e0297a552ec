"""More of all kinds: layers made in forward, parts of a Sequential, errors that are caught, writes to parameters, outputs."""

from __future__ import annotations

from typing import Any

from torch_cases import IMAGES, F, case, ids, line, net, nn, rows, torch


@case("equal")
def layers_made_in_forward() -> Any:
    return net(lambda self, x: nn.Softmax(dim=-1)(nn.ReLU()(self.a(x))), a=line())


@case("refused")
def dropout_made_in_forward() -> Any:
    return net(lambda self, x: nn.Dropout(0.5)(self.a(x)), a=line())


@case("refused")
def linear_made_in_forward() -> Any:
    return net(lambda self, x: nn.Linear(6, 6, dtype=torch.float64)(self.a(x)), a=line())


@case("equal")
def part_of_a_sequential() -> Any:
    return net(lambda self, x: self.s[2](self.s[:2](x)), s=nn.Sequential(line(), nn.Tanh(), line()))


@case("refused")
def caught_error() -> Any:
    def forward(self, x):
        try:
            scale = float(x.mean()) * 0 + 2.0
        except Exception:
            scale = 1.0
        return self.a(x) * scale

    return net(forward, a=line())


@case("refused")
def caught_condition() -> Any:
    def forward(self, x):
        try:
            return self.a(x) if x.sum() * 0 == 0 else x
        except RuntimeError:
            return self.a(x) * 2

    return net(forward, a=line())


@case("refused")
def parameter_clamped_in_forward() -> Any:
    def forward(self, x):
        with torch.no_grad():
            self.a.weight.clamp_(-0.1, 0.1)
        return self.a(x)

    return net(forward, a=line())


@case("refused")
def data_of_a_parameter_written() -> Any:
    def forward(self, x):
        self.a.weight.data.mul_(0.9)
        return self.a(x)

    return net(forward, a=line())


@case("refused")
def parameter_replaced_in_forward() -> Any:
    def forward(self, x):
        self.a.weight = nn.Parameter(self.a.weight * 0.5)
        return self.a(x)

    return net(forward, a=line())


@case("refused")
def gradient_read_in_forward() -> Any:
    return net(lambda self, x: self.a(x) * (2.0 if self.a.weight.grad is None else 1.0), a=line())


@case("equal")
def input_that_asks_for_a_gradient() -> Any:
    return net(lambda self, x: self.a(x.requires_grad_()), a=line())


@case("refused")
def gradient_in_forward() -> Any:
    def forward(self, x):
        h = self.a(x)
        (g,) = torch.autograd.grad(h.sum(), h, create_graph=True)
        return h * g

    return net(forward, a=line())


@case("refused")
def gradient_of_a_function_in_forward() -> Any:
    return net(lambda self, x: torch.func.grad(lambda y: (y * y).sum())(self.a(x)), a=line())


@case("refused")
def mapped_over_samples() -> Any:
    return net(lambda self, x: torch.vmap(torch.sin)(self.a(x)), a=line())


@case("equal")
def returns_its_input_too() -> Any:
    return net(lambda self, x: (self.a(x), x, x), a=line())


@case("equal")
def returns_one_tensor_twice() -> Any:
    return net(lambda self, x: ((h := self.a(x)), h, h.t()), a=line())


@case("equal")
def returns_a_parameter() -> Any:
    return net(lambda self, x: (self.a(x), self.a.weight * 2), a=line())


@case("equal")
def returns_a_buffer() -> Any:
    return net(lambda self, x: (self.a(x), self.table), a=line(), table=torch.randn(3))


@case("equal", rows(2, 5, 6))
def positions_in_a_parameter() -> Any:
    return net(lambda self, x: self.a(x + self.p[:, : x.size(1)]), a=line(), p=nn.Parameter(torch.randn(1, 8, 6)))


@case("equal", ids(7, 2, 5))
def table_sliced() -> Any:
    return net(lambda self, t: self.e(t) + self.p.weight[: t.size(1)], e=nn.Embedding(7, 6), p=nn.Embedding(8, 6))


@case("equal")
def fixed_integers_beside_floats() -> Any:
    return net(lambda self, x: self.a(x) * torch.arange(6) + (torch.arange(6) > 2) * x, a=line())


@case("equal")
def fixed_matrix_first() -> Any:
    return net(lambda self, x: self.m @ self.a(x), a=line(), m=torch.randn(3, 4))


@case("equal", ids())
def arithmetic_of_tokens() -> Any:
    return net(lambda self, t: self.e((t + 1) % 7), e=nn.Embedding(7, 6))


@case("equal", ids())
def mask_of_tokens() -> Any:
    return net(lambda self, t: self.e(t) * (t != 0).unsqueeze(-1), e=nn.Embedding(7, 6))


@case("equal", rows(6))
def one_dimension() -> Any:
    return net(lambda self, x: self.a(x) * 2, a=line())


@case("equal")
def weight_stored_transposed() -> Any:
    made = nn.Sequential(line(), nn.Tanh())
    made[0].weight = nn.Parameter(torch.randn(6, 6).t())
    return made


@case("refused", rows(4, 6))
def synchronised_norm() -> Any:
    return nn.Sequential(line(), nn.SyncBatchNorm(6))


@case("equal", rows(4, 6))
def norm_of_vectors() -> Any:
    return nn.Sequential(line(), nn.BatchNorm1d(6, eps=0.1, momentum=0.9), nn.Tanh(), line(6, 3))


@case("equal", rows(4, 6, 3))
def norm_of_sequences() -> Any:
    return nn.Sequential(nn.BatchNorm1d(6, momentum=0.0), nn.Flatten())


@case("equal")
def wrapped_for_several_devices() -> Any:
    return nn.DataParallel(nn.Sequential(line()))


@case("equal")
def compiled_in_parts() -> Any:
    """Which is run as its code says: a layer, a method and a function. Nothing is compiled before it is called."""
    silu, inner = torch.compile(F.silu), torch.compile(nn.Sequential(line()))
    made = net(lambda s, x: s.b(silu(s.a(x)) * s.c(x)), a=torch.compile(line()), b=inner, c=line())
    made.c.compile()
    return made


@case("refused")
def compiled_by_script() -> Any:
    return nn.Sequential(torch.jit.script(nn.Sequential(line()).double()))


@case("equal")
def quantised_addition() -> Any:
    return net(lambda self, x: self.f.add(self.a(x), x), a=line(), f=torch.ao.nn.quantized.FloatFunctional())


@case("equal")
def stubs() -> Any:
    return net(lambda self, x: self.d(self.a(self.q(x))), a=line(), q=torch.ao.quantization.QuantStub(),
               d=torch.ao.quantization.DeQuantStub())


@case("equal")
def dropout_in_place_of_zero() -> Any:
    return net(lambda self, x: self.d(h := self.a(x)) + h, a=line(), d=nn.Dropout(0.0, inplace=True))


@case("refused")
def dropout_only_in_evaluation() -> Any:
    return net(lambda self, x: F.dropout(self.a(x), 0.5, training=not self.training), a=line())


@case("equal")
def dropout_by_a_branch() -> Any:
    def forward(self, x):
        h = self.a(x)
        if self.training and self.p:
            h = F.dropout(h, self.p)
        return h

    return net(forward, a=line(), p=0.0)


@case("equal")
def property_in_place_of_a_parameter() -> Any:
    class Half(nn.Linear):
        @property
        def scale(self):
            return 0.5

        def __getattr__(self, name):
            value = super().__getattr__(name)
            return value * 0.5 if name == "weight" else value

    half = Half(6, 6)
    with torch.no_grad():  # as below: without it the weight is what memory held, at times not a number
        half._parameters["weight"].normal_()
    return nn.Sequential(half.double(), nn.BatchNorm1d(6, affine=False))


@case("equal")
def weight_changed_by_getattr() -> Any:
    class Half(nn.Linear):
        def __getattr__(self, name):
            value = super().__getattr__(name)
            return value * 0.5 if name == "weight" else value

    half = Half(6, 6)
    with torch.no_grad():  # `reset_parameters` has filled what __getattr__ returned, which is not the weight
        half._parameters["weight"].normal_()
    return nn.Sequential(half, nn.Tanh())


@case("equal")
def weights_by_the_positions_of_all_samples() -> Any:
    def forward(self: Any, x: Any) -> Any:
        positions = torch.arange(1, 7).unsqueeze(0).repeat(len(x), 1)
        return x + self.a(self.a.weight[positions - 1].mean(-1))

    return net(forward, a=line())


@case("equal", IMAGES)
def weight_standardised() -> Any:
    class Mine(nn.Linear):
        def forward(self, x):
            w = self.weight - self.weight.mean(1, keepdim=True)
            return F.linear(x, w / (w.std(1, keepdim=True) + 0.1), self.bias)

    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), Mine(32, 4))


@case("equal", IMAGES)
def convolution_with_a_computed_weight() -> Any:
    return net(lambda self, x: F.conv2d(x, self.c.weight * 2, self.c.bias), c=nn.Conv2d(3, 2, 3))


@case("equal", IMAGES)
def other_convolutions() -> Any:
    return nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 2, 3))


@case("equal", IMAGES)
def squeeze_and_excite() -> Any:
    return net(lambda self, x: (h := self.c(x)) * torch.sigmoid(self.f(h.mean((-1, -2))))[:, :, None, None], c=nn.Conv2d(3, 4, 3),
               f=line(4, 4))


@case("equal")
def gradients_switched_on_inside() -> Any:
    def forward(self, x):
        with torch.no_grad():
            scale = x.mean(0)
            with torch.enable_grad():
                h = self.a(x)
        return h * scale

    return net(forward, a=line())


@case("equal")
def checkpointed_with_reentrance() -> Any:
    from torch.utils.checkpoint import checkpoint

    return net(lambda self, x: self.b(checkpoint(self.a, self.b(x), use_reentrant=True)), a=line(), b=line())


def _with_sinks(mask: Any, largest: bool = True) -> Any:
    """A module of attention in which each head has a score more, to which no value belongs."""

    def forward(self, x):
        q, k, v = (part(x).view(2, 5, 2, 3).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) * 0.7 + mask
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(2, -1, 5, -1)
        both = torch.cat([scores, sinks], dim=-1)
        if largest:
            both = both - both.max(dim=-1, keepdim=True).values
        weights = F.dropout(F.softmax(both, dim=-1)[..., :-1], p=0.0, training=self.training)
        return torch.matmul(weights, v).transpose(1, 2).reshape(2, 5, 6)

    return net(forward, q=line(), k=line(), v=line(), sinks=nn.Parameter(torch.tensor([0.3, -0.2])))


LATER = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)


@case("equal", rows(2, 5, 6))
def attention_with_sinks() -> Any:
    return _with_sinks(LATER)


@case("equal", rows(2, 5, 6))
def attention_with_sinks_of_all_keys() -> Any:
    return _with_sinks(torch.zeros(5, 5, dtype=torch.float64), largest=False)


@case("equal", rows(2, 5, 6))
def attention_with_sinks_and_a_bias() -> Any:
    return _with_sinks(torch.arange(25.0, dtype=torch.float64).reshape(5, 5) / 25)
