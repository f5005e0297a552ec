"""Shared layers and parameters, options of layers, functions, networks like Llama."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch_cases import CASES, IMAGES, Arguments, Case, F, case, ids, line, net, nn, rows, simple, torch

# ---- sharing ---------------------------------------------------------------------------------------------------------


@case("equal")
def layer_called_twice() -> Any:
    return net(lambda self, x: self.a(torch.tanh(self.a(x))), a=line())


@case("equal")
def layer_under_two_names() -> Any:
    shared = line()
    return nn.Sequential(shared, nn.Tanh(), shared)


@case("equal")
def weight_shared_by_two_layers() -> Any:
    made = nn.Sequential(line(bias=False), nn.Tanh(), line(bias=False))
    made[2].weight = made[0].weight
    return made


@case("equal")
def weight_shared_but_not_the_bias() -> Any:
    made = nn.Sequential(line(), nn.Tanh(), line())
    made[2].weight = made[0].weight
    return made


@case("refused")
def parameters_in_one_memory() -> Any:
    made = nn.Sequential(line(bias=False), nn.Tanh(), line(6, 3, bias=False)).double()
    made[2].weight = nn.Parameter(made[0].weight.data[:3])
    return made


@case("equal")
def copied_layers() -> Any:
    first = line()
    return nn.Sequential(first, nn.Tanh(), copy.deepcopy(first))


@case("equal", ids())
def tied_embedding() -> Any:
    made = net(lambda self, t: self.out(torch.tanh(self.e(t))), e=nn.Embedding(7, 6), out=line(6, 7, bias=False))
    made.out.weight = made.e.weight
    return made


@case("equal", ids())
def tied_embedding_by_function() -> Any:
    return net(lambda self, t: F.linear(torch.tanh(self.e(t)), self.e.weight), e=nn.Embedding(7, 6))


@case("equal", ids())
def tied_embedding_by_product() -> Any:
    return net(lambda self, t: torch.tanh(self.e(t)) @ self.e.weight.t(), e=nn.Embedding(7, 6))


@case("equal", rows(2, 5, 6))
def lstm_twice() -> Any:
    return net(lambda self, x: self.r(self.r(x)[0])[0], r=nn.LSTM(6, 6, batch_first=True))


@case("equal", rows(2, 5, 6))
def gru_of_two_sequences() -> Any:
    """A siamese network: one layer, of several layers and both ways, reads two sequences of different lengths."""
    def forward(self, x):
        (_, a), (_, b) = self.r(self.a(x)), self.r(x[:, 1:4])
        return (a * b).transpose(0, 1).flatten(1)

    return net(forward, a=line(), r=nn.GRU(6, 3, 2, batch_first=True, bidirectional=True))


@case("equal", rows(2, 5, 6))
def attention_three_times() -> Any:
    """A universal transformer: one block again and again, once across."""
    def forward(self, x):
        for _ in range(2):
            x = x + self.m(x, x, x)[0]
        return self.m(x[:, :3], x, self.a(x))[0]

    return net(forward, a=line(), m=nn.MultiheadAttention(6, 2, batch_first=True))


@case("refused", rows(2, 5, 6))
def attention_shares_its_weights() -> Any:
    made = net(lambda self, x: self.m(x, x, x)[0] + self.n(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True),
               n=nn.MultiheadAttention(6, 2, batch_first=True))
    made.n.in_proj_weight = made.m.in_proj_weight
    return made


@case("refused", rows(2, 5, 6))
def attention_weight_read_by_itself() -> Any:
    return net(lambda self, x: self.m(x, x, x)[0] * self.m.out_proj.weight.mean(), m=nn.MultiheadAttention(6, 2, batch_first=True))


@case("equal")
def modules_in_a_loop() -> Any:
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    return net(forward, layers=nn.ModuleList([line() for _ in range(3)]))


@case("refused")
def modules_in_a_plain_list() -> Any:
    made = net(lambda self, x: self.layers[0](x))
    made.layers = [line().double()]
    return made


@case("refused")
def lazy_layer() -> Any:
    return nn.Sequential(nn.LazyLinear(6), nn.Tanh())


@case("equal")
def layer_as_the_whole() -> Any:
    return line()


@case("equal")
def norm_as_the_whole() -> Any:
    return nn.LayerNorm(6, eps=1e-2)


# ---- options of layers -----------------------------------------------------------------------------------------------


def _layers(word: str, arguments: Arguments, **made: Callable[[], Any]) -> None:
    for name, make in made.items():
        CASES[name] = Case(name, make, arguments, word)


def _joined(x: Any, a: Any, b: Any) -> Any:
    """Two tensors written side by side, then a part of the result anew."""
    made = x.new_empty(2, 5, 12)
    made[..., :6].copy_(a)
    made[..., 6:] = b
    made = made * 1.5
    made[:, 1:3] = 0.25
    return made


def _padded(tokens: Any, layer: Any, table: Any, **options: Any) -> Any:
    """Attention among the tokens that are not 0; each sample has some."""
    x, padding = table(tokens), tokens == 0
    if not layer.batch_first:
        return layer(*[x.transpose(0, 1)] * 3, key_padding_mask=padding, **options)[0].transpose(0, 1)
    return layer(x, x, x, key_padding_mask=padding, **options)[0]


def PADDED() -> Any:
    return (torch.tensor([[3, 1, 4, 0, 0], [2, 6, 5, 3, 0], [5, 0, 0, 0, 0], [1, 2, 3, 4, 5]]),)

_layers(
    "equal", PADDED,
    padding_of_keys=lambda: net(
        lambda s, t: _padded(t, s.m, s.e), e=nn.Embedding(7, 6), m=nn.MultiheadAttention(6, 2, batch_first=True)),
    padding_of_keys_swapped=lambda: net(
        lambda s, t: _padded(t, s.m, s.e, need_weights=False), e=nn.Embedding(7, 6), m=nn.MultiheadAttention(6, 2)),
    padding_and_causal=lambda: net(
        lambda s, t: _padded(t, s.m, s.e, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1), need_weights=False),
        e=nn.Embedding(7, 6), m=nn.MultiheadAttention(6, 2, batch_first=True)),
    encoder_with_padding=lambda: net(
        lambda s, t: s.t(s.e(t), src_key_padding_mask=t == 0), e=nn.Embedding(7, 6),
        t=nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2, enable_nested_tensor=False)),
    transformer_with_padding=lambda: net(
        lambda s, t: s.t(
            s.e(t), s.e(t), tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=s.e.weight.dtype), tgt_is_causal=True,
            src_key_padding_mask=t == 0, memory_key_padding_mask=t == 0, tgt_key_padding_mask=t == 0),
        e=nn.Embedding(7, 6), t=nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True)),
)
_layers(
    "refused", ids(),
    embedding_norm=lambda: nn.Sequential(nn.Embedding(7, 6, max_norm=0.5), line()),
    embedding_frequency=lambda: nn.Sequential(nn.Embedding(7, 6, scale_grad_by_freq=True), line()),
)
_layers(
    "equal", ids(),
    embedding_padding=lambda: nn.Sequential(nn.Embedding(7, 6, padding_idx=0), line()),
    embedding_padding_from_the_end=lambda: nn.Sequential(nn.Embedding(7, 6, padding_idx=-1), line()),
    functional_embedding_padding=lambda: net(lambda s, t: F.embedding(t, s.e.weight, padding_idx=1), e=nn.Embedding(7, 6)),
    functional_embedding=lambda: net(lambda s, t: F.embedding(t, s.e.weight), e=nn.Embedding(7, 6)),
)
_layers(
    "equal", rows(2, 5, 6),
    norm_without_bias=lambda: nn.Sequential(line(), nn.LayerNorm(6, bias=False)),
    norm_without_weights=lambda: nn.Sequential(line(), nn.LayerNorm(6, elementwise_affine=False)),
    norm_of_two_dimensions=lambda: nn.Sequential(line(), nn.LayerNorm((5, 6), eps=1e-2)),
    rms_norm=lambda: nn.Sequential(line(), nn.RMSNorm(6), nn.RMSNorm(6, eps=0.1, elementwise_affine=False)),
    functional_norm_with_another_eps=lambda: net(
        lambda s, x: F.layer_norm(s.n(s.a(x)), (6,), s.n.weight, s.n.bias, 1e-2), a=line(), n=nn.LayerNorm(6)),
    functional_norm_of_own_parameters=lambda: net(
        lambda s, x: F.layer_norm(s.a(x), (6,), s.g, s.b, 1e-2), a=line(), g=nn.Parameter(torch.rand(6)),
        b=nn.Parameter(torch.rand(6))),
    functional_norm_of_the_whole=lambda: net(
        lambda s, x: F.layer_norm(s.a(x), (6,), s.weight, s.bias, 1e-3), a=line(), weight=nn.Parameter(torch.rand(6)),
        bias=nn.Parameter(torch.rand(6))),
    functional_norm_without_parameters=lambda: net(lambda s, x: F.layer_norm(s.a(x), (6,)), a=line()),
    encoder_layer=lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)),
    encoder_layer_with_tanh_gelu=lambda: nn.Sequential(nn.TransformerEncoderLayer(
        6, 2, 8, dropout=0.0, batch_first=True, activation=lambda x: F.gelu(x, approximate="tanh"), norm_first=True)),
    encoder_layer_with_own_activation=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=lambda x: torch.sin(x))),
    encoder_layer_eps=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, layer_norm_eps=0.1, bias=False)),
    encoder_causal=lambda: net(
        lambda s, x: s.e(x, mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype), is_causal=True),
        e=nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2, enable_nested_tensor=False)),
    attention_layer_masked=lambda: net(
        lambda s, x: s.m(x, x, x, attn_mask=torch.eye(5, dtype=torch.bool))[0], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    attention_layer_not_batch_first=lambda: net(lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2)),
    attention_layer_swapped=lambda: net(
        lambda s, x: s.m(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), m=nn.MultiheadAttention(6, 2)),
    attention_layer_of_three=lambda: net(
        lambda s, x: s.m(x, x[:, :3] * 2, x[:, :3, :4], attn_mask=s.n.to(x.dtype))[0],
        m=nn.MultiheadAttention(6, 2, batch_first=True, vdim=4), n=torch.randn(5, 3)),
    attention_layer_mask_of_each_head=lambda: net(
        lambda s, x: s.m(x, x, x, attn_mask=s.n)[0], m=nn.MultiheadAttention(6, 2, batch_first=True),
        n=torch.arange(100).reshape(4, 5, 5) % 3 == 1),
    attention_layer=lambda: net(lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    attention_layer_causal=lambda: net(
        lambda s, x: s.m(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))[0],
        m=nn.MultiheadAttention(6, 2, batch_first=True)),
    causal_attention=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, is_causal=True), a=line()),
    causal_attention_of_fewer_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x)[:, 2:4], x, x, is_causal=True), a=line()),
    causal_attention_of_more_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x[:, :3], x[:, :3], is_causal=True), a=line()),
    attention_with_scale=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, scale=0.1), a=line()),
    attention_with_a_mask=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=s.m), a=line(), m=torch.ones(5, 5).tril().bool()),
    attention_with_numbers_as_mask=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=s.m.to(x.dtype)), a=line(), m=torch.randn(5, 5)),
    grouped_queries=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(
            s.a(x).view(2, 5, 3, 2).transpose(1, 2), *([x[:, :, :2].unsqueeze(1)] * 2), enable_gqa=True), a=line()),
    written_parts=lambda: net(lambda s, x: _joined(x, s.a(x), s.b(x)), a=line(), b=line()),
    lstm=lambda: net(lambda s, x: s.r(x)[0] + s.r.training * 0, r=nn.LSTM(6, 4, 2, batch_first=True)),
    lstm_last_state=lambda: net(lambda s, x: s.r(x)[1][0][-1], r=nn.LSTM(6, 4, 2, batch_first=True)),
)
_layers(
    "refused", rows(2, 5, 6),
    encoder_layer_whose_evaluation_is_pytorchs_mistake=lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=nn.GELU("tanh"))),
    attention_weights_used=lambda: net(lambda s, x: s.m(x, x, x)[1], m=nn.MultiheadAttention(6, 2, batch_first=True)),
    attention_layer_zero=lambda: net(
        lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True, add_zero_attn=True)),
    attention_masked_by_numbers=lambda: net(
        lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, attn_mask=(x @ x.mT) > 0), a=line()),
    attention_that_drops=lambda: net(lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, dropout_p=0.5), a=line()),
    lstm_without_biases=lambda: net(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 4, bias=False, batch_first=True)),
    lstm_with_a_projection=lambda: net(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 4, proj_size=2, batch_first=True)),
)
_layers(
    "equal", rows(2, 5, 6), rounded_quotient=lambda: net(lambda s, x: torch.div(s.a(x), 2, rounding_mode="floor"), a=line()),
)
_layers("equal", rows(2, 5, 6), sum_of_another_type=lambda: net(lambda s, x: s.a(x).sum(-1, dtype=torch.float32), a=line()))
_layers(
    "equal", IMAGES,
    pools=lambda: nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.MaxPool2d(2, 2, ceil_mode=True), nn.AvgPool2d(2, 1, count_include_pad=False)),
    pools_by_function=lambda: net(
        lambda s, x: F.avg_pool2d(F.max_pool2d(s.c(x), 3, 2, 1), 2, ceil_mode=True), c=nn.Conv2d(3, 3, 1)),
    same_padding=lambda: nn.Sequential(nn.Conv2d(3, 4, (2, 4), padding="same", dilation=(1, 2))),
    convolution_by_function=lambda: net(lambda s, x: F.conv2d(x, s.c.weight, s.c.bias, padding=1) + s.c(F.pad(x, (1, 1, 1, 1))),
                                        c=nn.Conv2d(3, 2, 3)),
    nearest=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=(1, 2))),
    group_norm_by_function=lambda: net(lambda s, x: F.group_norm(s.c(x), 2, eps=0.1), c=nn.Conv2d(3, 4, 1)),
    bilinear=lambda: net(
        lambda s, x: F.interpolate(s.c(x), scale_factor=2, mode="bilinear", align_corners=True), c=nn.Conv2d(3, 3, 1)),
    half_size=lambda: net(lambda s, x: F.interpolate(s.c(x), scale_factor=0.5), c=nn.Conv2d(3, 3, 1)),
    leaky=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.LeakyReLU(0.3, inplace=True)),
    channels_last=lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten()).to(memory_format=torch.channels_last),
    patches=lambda: net(lambda s, x: s.c(x).unfold(2, 2, 2).sum(-1) if False else s.c(x).unflatten(2, (2, -1)).mean(3),
                        c=nn.Conv2d(3, 3, 1)),
    reflected=lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")),
    circular=lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")),
    reflected_pad=lambda: net(lambda s, x: F.pad(s.c(x), (1, 1, 1, 1), mode="reflect"), c=nn.Conv2d(3, 3, 1)),
)
_layers(
    "refused", IMAGES,
    pool_with_indices=lambda: net(lambda s, x: s.p(s.c(x))[0], c=nn.Conv2d(3, 3, 1), p=nn.MaxPool2d(2, return_indices=True)),
    pool_with_divisor=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(2, divisor_override=3)),
    output_size=lambda: net(lambda s, x: s.c(x, output_size=(13, 13)), c=nn.ConvTranspose2d(3, 3, 3, 2)),
    stochastic_pool=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.FractionalMaxPool2d(2, output_size=3)),
    instance_norm=lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3, track_running_stats=True)),
)

# ---- functions -------------------------------------------------------------------------------------------------------

for _name, _function in {
    "root_mean_square": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "quotient_of_tensors": lambda x: x / (x.abs() + 1),
    "number_by_tensor": lambda x: 2.0 / (x * x + 1) + 1 / (1 + torch.exp(-x)),
    "powers": lambda x: x**2 + x.pow(3) + torch.square(x) + (x * x + 1) ** 0.5,
    "logarithm": lambda x: torch.log(x.exp() + 1) + torch.sqrt(x * x + 1),
    "clamped": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0) + torch.clamp(x, max=0.3),
    "clamped_at_the_end": lambda x: (F.relu(x)).clamp(min=0.0, max=1.0),
    "alpha": lambda x: torch.add(x, x * x, alpha=3) - torch.sub(x, 2.0, alpha=2),
    "spread": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) + x.var(0, unbiased=False),
    "stacked": lambda x: torch.stack([x, x * 2], 1).sum(1) + torch.stack(x.unbind(1), -1),
    "unpacked": lambda x: sum(part * i for i, part in enumerate(x.t())),
    "iterated": lambda x: torch.stack([row * 2 for row in x]),
    "negative_dimensions": lambda x: torch.cat([x.unsqueeze(-1), x.unsqueeze(-1)], -1).transpose(-1, -2).flatten(-2, -1),
    "moved": lambda x: x.view(4, 2, 3).permute(2, 0, -2).movedim(0, -1).reshape(4, 2, 3).swapaxes(1, 2),
    "strided_view": lambda x: x.t()[::2].t().contiguous() * x[:, 1::2],
    "negative_slices": lambda x: x[..., -3:] * x[:, :-3] + x[1:2, None, -1],
    "repeated": lambda x: x.repeat(2, 1).view(2, 4, 6).sum(0) + x.repeat_interleave(2, dim=1)[:, :6],
    "expanded": lambda x: x[:, :1].expand(-1, 6) * x.unsqueeze(0).expand(3, 4, 6).sum(0) + x[:, 1:2].expand_as(x),
    "broadcast": lambda x: x.unsqueeze(1) * x.unsqueeze(0) + x,
    "einsum": lambda x: torch.einsum("bi,bj->bij", x, x).sum(-1) + torch.einsum("ij,kj->ik", [x, x]).sum(1, keepdim=True),
    "matrices_of_other_ranks": lambda x: x.view(2, 2, 6) @ x.t() @ x + x.view(2, 1, 2, 6) @ x.view(1, 2, 2, 6).mT @ x.view(2, 2, 6),
    "product_of_batches": lambda x: torch.baddbmm(
        x.view(2, 2, 6), x.view(2, 2, 6), x.view(2, 2, 6).mT @ x.view(2, 2, 6), beta=0.5, alpha=2
    ),
    "matrix_by_vector": lambda x: (x @ x[0]).unsqueeze(1) + torch.mm(x, x.t()).mean(1, keepdim=True),
    "chosen": lambda x: x[:, [0, 2, -1, 2]].sum(1, keepdim=True) * x[torch.tensor([[1, 1], [0, 3]])].mean((0, 1)),
    "chosen_ranges": lambda x: x[..., [-2]] + x[:, [2, 3]].sum(1, keepdim=True) + torch.index_select(x, 1, torch.arange(2)).mean(),
    "chosen_around_the_end": lambda x: x[:, [-1, 0]] + x[:, [-3, -2]] * x[[3], ...][:, 1:3],
    "rolled": lambda x: torch.roll(x, 1, 1) + x.roll((1, -2), (0, 1)),
    "padded": lambda x: F.pad(x, (1, 2), value=0.5)[:, 2:8],
    "gate": lambda x: F.silu(x) * torch.sigmoid(x) + F.gelu(x, approximate="tanh") + F.hardtanh(x, -0.3, 0.4),
    "all_of_it": lambda x: x.mean() + x.sum(()) * 0.1 + x.sum((0, 1), keepdim=True),
    "sizes": lambda x: x.reshape(x.shape[0], -1, 2).mean(x.dim()) * x.size()[1] + x.numel() / len(x),
    "casts_to_itself": lambda x: x.to(x.dtype).type_as(x).double().cpu().clone(memory_format=torch.preserve_format),
    "softmax_by_dtype": lambda x: F.softmax(x, dim=-1, dtype=torch.float64).to(x.dtype),
    "minus_from": lambda x: 1 - x + (2 - x * x),
    "nested_outputs": lambda x: (x, (x * 2, [x + 1])),
    "dictionary": lambda x: {"out": x}, "dictionary_output_refused_or_equal": lambda x: (x, {"a": x * 2}),
    "zeroed": lambda x: x.zero_() + 1,
    "maximum": lambda x: torch.max(x, x * x), "minimum": lambda x: torch.minimum(x, 2 * x),
    "maximum_of_a_mask": lambda x: torch.max(x - 1, torch.full((), torch.finfo(x.dtype).min, dtype=x.dtype)),
}.items():
    simple(_function, name=_name)
simple(lambda x: x.round(), name="rounded")
simple(lambda x: x[:, :4].diagonal() * x.view(4, 2, 3).diagonal(-1, 0, 2).sum() + torch.diag(x[0, :4]) * torch.diag(x[:, 1:5]),
       name="diagonal")
simple(lambda x: torch.cdist(x, x[:2]) + torch.cdist(x.repeat(8, 1), x[2:] + 1)[:4], name="distances")
simple(lambda x: x[:, torch.arange(6) > 2], name="chosen_by_booleans")
for _name, _function in {
    "quantized_stub": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "norm_of_order_3": lambda x: F.normalize(x, 3.0),
    "tensor_exponent": lambda x: x.abs() ** x, "random_relu": lambda x: F.rrelu(x, training=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True), "feature_dropout": lambda x: F.dropout1d(x.view(4, 2, 3), 0.5, True),
    "strided": lambda x: torch.as_strided(x, (3, 3), (1, 1)),
    "numpy": lambda x: torch.from_numpy(np.asarray(x.detach())) * x,
    "printed_number": lambda x: x * float(f"{x.sum():.3f}"), "no_tensor": lambda x: 3,
}.items():
    simple(_function, "refused", name=_name)


class Rotary(nn.Module):
    """Llama's block: root mean square, rotary positions from buffers, grouped queries, a gated feed-forward part."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2, steps: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.norm1, self.norm2 = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.rand(width) + 0.5)
        self.q, self.k = line(width, width, bias=False), line(width, groups * self.each, bias=False)
        self.v, self.o = line(width, groups * self.each, bias=False), line(width, width, bias=False)
        self.gate, self.up, self.down = (line(a, b, bias=False) for a, b in ((width, 24), (width, 24), (24, width)))
        angles = torch.outer(torch.arange(steps).double(), 1e4 ** (-torch.arange(0, self.each, 2).double() / self.each))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def rms(self, x: Any, weight: Any) -> Any:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def turn(self, x: Any) -> Any:
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        steps = x.shape[-2]
        return x * self.cos[:steps] + torch.cat((-b, a), dim=-1) * self.sin[:steps]

    def forward(self, x: Any) -> Any:
        n, steps, _ = x.shape
        h = self.rms(x, self.norm1)
        q = self.turn(self.q(h).view(n, steps, self.heads, -1).transpose(1, 2))
        k = self.turn(self.k(h).view(n, steps, self.groups, -1).transpose(1, 2))
        v = self.v(h).view(n, steps, self.groups, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.each)
        mask = torch.full((steps, steps), float("-inf"), device=x.device).triu(1)
        y = F.softmax(scores + mask, dim=-1).to(q.dtype) @ v
        x = x + self.o(y.transpose(1, 2).contiguous().view(n, steps, -1))
        h = self.rms(x, self.norm2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@case("equal", ids(7, 2, 6))
def llama() -> Any:
    return nn.Sequential(nn.Embedding(7, 16), Rotary(), Rotary(), line(16, 7, bias=False))


@case("equal", rows(2, 6, 16))
def llama_by_functions() -> Any:
    class Block(Rotary):
        def forward(self, x):
            n, steps, _ = x.shape
            h = F.rms_norm(x, (16,), self.norm1, 1e-5)
            q = self.turn(self.q(h).view(n, steps, self.heads, -1).transpose(1, 2))
            k = self.turn(self.k(h).view(n, steps, self.groups, -1).transpose(1, 2))
            v = self.v(h).view(n, steps, self.groups, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return x + self.o(y.transpose(1, 2).reshape(n, steps, -1))

    return Block()
