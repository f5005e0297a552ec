"""Losses in forward, cells of recurrent networks, computed indices, and functions that are short for others."""

from __future__ import annotations

from typing import Any

from torch_cases import CASES, Case, F, case, ids, line, net, nn, rows, simple, torch

for _name, _function in {
    "loss_of_squares": lambda x: x + F.mse_loss(x, x * x) + F.mse_loss(x, x * 2, reduction="none"),
    "loss_of_distances": lambda x: F.l1_loss(x, x * x) + F.smooth_l1_loss(x, x * 3) + F.huber_loss(x, 2 * x, delta=0.3),
    "loss_of_distances_by_layers": lambda x: nn.L1Loss(reduction="sum")(x, x * x) + nn.SmoothL1Loss(beta=0.2)(x, x * 3),
    "loss_of_probabilities": lambda x: F.binary_cross_entropy(x.sigmoid(), (x * x).sigmoid()) + x,
    "loss_of_two_classes": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=torch.ones(6).double() * 3),
    "loss_of_two_classes_by_layer": lambda x: nn.BCEWithLogitsLoss(reduction="none")(x, x.sigmoid()).sum(1),
    "divergence": lambda x: F.kl_div(x.log_softmax(-1), x.exp().softmax(-1), reduction="batchmean") + x,
    "divergence_of_logarithms": lambda x: F.kl_div(x.log_softmax(-1), (2 * x).log_softmax(-1), reduction="sum", log_target=True),
    "loss_of_normal_numbers": lambda x: F.gaussian_nll_loss(x, 2 * x, x.exp()) + F.poisson_nll_loss(x, x.exp()),
    "loss_of_margins": lambda x: F.soft_margin_loss(x, x.detach().tanh()) + F.margin_ranking_loss(x, 2 * x, x.tanh(), 0.5),
    "loss_of_distances_that_are_wanted": lambda x: F.hinge_embedding_loss(x, x.detach().sign(), 0.5) + x,
    "loss_of_many_labels": lambda x: nn.MultiLabelSoftMarginLoss(reduction="none")(x, (x.detach() > 0).to(x.dtype))[:, None] + x,
    "filled_diagonal": lambda x: (x @ x.T).fill_diagonal_(-9.0) + x.clone().fill_diagonal_(0.5).mean(),
    "loss_of_three": lambda x: F.triplet_margin_loss(x, x * x, x.tanh()) + nn.TripletMarginLoss(swap=True)(x, x * 2, x * x),
    "distance": lambda x: F.pairwise_distance(x, x * x).unsqueeze(1) + x,
    "similarity": lambda x: F.cosine_similarity(x, x * x + 1).unsqueeze(1) + nn.CosineSimilarity(0)(x, x.exp()),
    "loss_of_chances": lambda x: F.cross_entropy(x, x.exp().softmax(-1), label_smoothing=0.1) + x,
    "loss_of_fixed_labels": lambda x: F.cross_entropy(x @ x.t(), torch.arange(4)) + x,
    "multiplied_up": lambda x: x.cumprod(1) + x[:, :5].cumprod(0).mean(), "multiplied": lambda x: x.prod(1) + x.prod(),
    "flipped": lambda x: x.flip(1) * x.flip([0, 1]) + torch.fliplr(x),
    "other_logarithms": lambda x: torch.log2(x.exp()) + torch.log10(x * x + 1) + torch.exp2(x) + torch.logit(x.sigmoid()),
    "hyperbolic": lambda x: torch.sinh(x) + torch.cosh(x) * torch.tan(x / 9) + torch.erfc(x),
    "soft": lambda x: F.softsign(x) + F.softshrink(x) + nn.Softshrink(0.2)(x),
    "two_sums_of_exponentials": lambda x: torch.logaddexp(x, x * x),
    "products_of_vectors": lambda x: torch.outer(x[0], x[1]) + torch.dot(x[0], x[2]) + torch.mv(x, x[3])[0]
    + torch.inner(x, x).sum(),
    "triangles": lambda x: x.tril() + torch.triu(x, 1) * 2,
    "differences": lambda x: torch.diff(x, dim=1) + torch.diff(x, 2, 1).sum(),
    "interpolated": lambda x: torch.lerp(x, x * x, 0.3), "statistics": lambda x: torch.cat(torch.var_mean(x, 1, keepdim=True), 1),
    "spreads": lambda x: sum(torch.std_mean(x + 1, (0, 1), correction=0)) + x, "broadcast_together": lambda x: (
        torch.broadcast_tensors(x[:, None], x[None])[0] * x),
    "shapes_by_name": lambda x: torch.cat(x.reshape(shape=(2, 2, 6)).split_with_sizes([1, 1], dim=1)[::-1], 1),
    "means_of_volumes": lambda x: nn.AdaptiveAvgPool3d(1)(x.view(4, 1, 1, 2, 3)).flatten(1) * x,
    "by_numpys_names": lambda x: x.mean(axis=-1, keepdims=True) + torch.sum(x, axis=1, keepdims=True),
    "least_positions": lambda x: x - x.argmin(0, keepdim=True) + x.argmax(0), "positions_of_the_largest": lambda x: (
        x - x.argmax(1, keepdim=True)),
    "largest_of_parts": lambda x: F.adaptive_max_pool1d(x[:, None], 3)[:, 0] + nn.AdaptiveMaxPool1d(1)(x[:, None])[:, 0],
    "means_of_parts": lambda x: F.avg_pool1d(x[:, None], 2)[:, 0] + F.max_pool1d(x[:, None], 2)[:, 0],
    "nearby_channels": lambda x: F.local_response_norm(x.view(2, 6, 2), 3, alpha=0.5),
    "chosen_pairs_of_all": lambda x: (x[:, :, None] * x[:, None])[:, torch.tensor([0, 1, 3]), torch.tensor([2, 0, 5])],
    "chosen_pairs": lambda x: x[[0, 1], [1, 2]],
    "chosen_of_masked_scores": lambda x: x * (~torch.ones(4, 6, dtype=torch.bool).scatter(
        -1, x.masked_fill(torch.arange(6) > 1, float("-inf")).topk(6).indices, False)).to(x.dtype),
    "mixture": lambda x: torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=x[:, :3]), torch.distributions.Normal(x[:, :3], x[:, 3:].exp())
    ).log_prob(torch.ones(4).double()),
}.items():
    simple(_function, name=_name)

WEIGHTS = torch.linspace(0.5, 2, 24).double().view(4, 6)
for _name, _function in {
    "weighted_loss_of_squares": lambda x: F.mse_loss(x, x * x, weight=WEIGHTS) + F.mse_loss(x, 2 * x, None, None, "sum", WEIGHTS),
    "weighted_loss_of_distances": lambda x: F.l1_loss(x, x * x, weight=WEIGHTS) + F.huber_loss(x, 2 * x, weight=WEIGHTS),
    "loss_of_distances_each_by_weight": lambda x: F.l1_loss(x, x * x, reduction="none", weight=WEIGHTS) + F.l1_loss(x, 2 * x),
    "weighted_loss_of_chances": lambda x: F.cross_entropy(x, x.exp().softmax(-1), WEIGHTS[0], label_smoothing=0.1) + x,
    "reductions_by_old_names": lambda x: F.mse_loss(x, x * x, size_average=False) * x / 99 + F.l1_loss(x, x * x, reduce=False)
    + F.cross_entropy(x, torch.arange(4), size_average=False) / 9 + F.kl_div(x, x.exp(), True, False, "sum") / 9,
    "divergence_of_one_class": lambda x: F.kl_div(x.log_softmax(-1), torch.eye(4, 6).double(), reduction="sum") + x,
    "divergence_of_no_chance": lambda x: F.kl_div(x, x.detach().relu(), reduction="none"),
    "loss_of_saturated_chances": lambda x: F.binary_cross_entropy((x * 1e3).sigmoid(), x.detach().sigmoid()) + x,
    "loss_of_certain_chances": lambda x: 1e-12 * F.binary_cross_entropy(
        F.hardtanh(9 * x, 0, 1).detach() + (x - x.detach()), WEIGHTS / 4, WEIGHTS) + x,
    "multiplied_in_a_type": lambda x: x.prod(1, dtype=torch.float64) + x.cumprod(0, dtype=torch.float64)[:, 0],
    "differences_with_more_around": lambda x: torch.diff(x, prepend=2 * x[:, :1], append=x[:, :2]) + torch.diff(
        x, n=2, dim=0, append=x[:1]).sum(),
    "flipped_by_name": lambda x: x.flip(dims=[1]) + x.flip(dims=(0, -1)) * x.flip((0,)),
    "inner_products_of_all": lambda x: torch.inner(x.view(2, 2, 6), x) + torch.inner(x[0], x.view(2, 2, 6)).sum() + torch.inner(
        x[0], x[1]),
    "two_sums_of_exponentials_spread": lambda x: torch.logaddexp(x, x[:1]) + torch.logaddexp(x[:, None, :1], x[None])[0],
}.items():
    simple(_function, name=_name)

for _name, _function in {
    "reduction_that_there_is_not": lambda x: F.smooth_l1_loss(x, 2 * x, reduction="avg"),
    "layer_with_a_reduction_that_there_is_not": lambda x: nn.L1Loss(reduction="avg")(x, 2 * x),
    "mean_by_batches_of_squares": lambda x: F.mse_loss(x, 2 * x, reduction="batchmean"),
    "loss_of_counts_in_full": lambda x: F.poisson_nll_loss(x, x.exp(), full=True),
    "products_of_no_vectors": lambda x: torch.dot(x, x), "largest_of_parts_of_no_batch": lambda x: F.adaptive_max_pool2d(
        x.view(2, 2, 6), (2, 3)), "largest_of_rows_of_no_batch": lambda x: F.adaptive_max_pool1d(x, 3),
}.items():
    simple(_function, "refused", name=_name)


def _words(function: Any, high: int = 6) -> Any:
    """A network of a table of 7 rows, of which ids (4, 5) take some."""
    return net(lambda self, t: function(self, self.e(t), t), e=nn.Embedding(7, high))


for _name, _function in {
    "loss_of_labels": lambda s, x, t: F.cross_entropy(x.transpose(1, 2), t) + x.mean(),
    "loss_of_each_label": lambda s, x, t: F.cross_entropy(x.transpose(1, 2), t, reduction="none") * x[..., 0],
    "likelihood": lambda s, x, t: F.nll_loss(x.log_softmax(-1).flatten(0, 1), t.flatten()) + nn.NLLLoss()(x[:, 0], t[:, 0]),
    "scores_of_labels": lambda s, x, t: x.gather(2, t[..., None]).squeeze(2) + x[:, 0].gather(-1, t[:, :1]),
    "rows_by_columns": lambda s, x, t: s.e.weight[t[:, :-1], t[:, 1:]] + s.e.weight[t].sum(-1)[:, 1:],
    "one_of_many": lambda s, x, t: F.one_hot(t, 7).double() @ s.e.weight,
    "summed_by_places": lambda s, x, t: torch.zeros(7, 7).double().index_add(0, t[0], x[0]) + s.e.weight.index_add(0, t[1], x[1]),
    "likelihood_without_padding": lambda s, x, t: F.nll_loss(x.flatten(0, 1), t.flatten(), ignore_index=0) + F.nll_loss(
        x.transpose(1, 2), t, ignore_index=3, reduction="sum") + x.mean(),
    "likelihood_by_weight": lambda s, x, t: F.nll_loss(x.transpose(1, 2), t, WEIGHTS.view(-1)[:7]) + x.mean(),
    "loss_by_weight_without_padding": lambda s, x, t: F.cross_entropy(
        x.transpose(1, 2), t, WEIGHTS.view(-1)[:7], ignore_index=0) + F.cross_entropy(x[:, 0], t[:, 0], ignore_index=1),
    "loss_of_each_label_without_padding": lambda s, x, t: F.cross_entropy(
        x.transpose(1, 2), t, reduction="none", ignore_index=2) * x[..., 0],
    "smoothed_loss_by_weight": lambda s, x, t: F.cross_entropy(
        x.transpose(1, 2), t, WEIGHTS.view(-1)[:7], 1, label_smoothing=0.1) + F.cross_entropy(
        x.transpose(1, 2), t, ignore_index=2, reduction="none", label_smoothing=0.3) * x[..., 0],
    "loss_of_labels_margins": lambda s, x, t: F.multi_margin_loss(x[:, 0], t[:, 0]) + F.multi_margin_loss(
        x[:, 1], t[:, 1], 2, 0.5, WEIGHTS.view(-1)[:7], reduction="none") + x.mean(),
    "loss_of_angles": lambda s, x, t: F.cosine_embedding_loss(x[:, 0], x[:, 1], torch.where(t[:, 0] > 3, 1, -1), 0.1) + x,
    "loss_by_old_names_without_padding": lambda s, x, t: F.nll_loss(x[:, 0], t[:, 0], None, False, 0) / 9 + x + F.cross_entropy(
        x[:, 0], t[:, 0], reduce=False)[:, None, None] / 9,
}.items():
    CASES[_name] = Case(_name, lambda of=_function: _words(of, 7), ids(), "equal")

for _name, _function in {
    "one_of_as_many_as_there_are": lambda s, x, t: F.one_hot(t).double() @ s.e.weight,
    "bag_with_padding": lambda s, x, t: F.embedding_bag(t, s.e.weight, padding_idx=0),
    "bag_of_lengths": lambda s, x, t: F.embedding_bag(t, s.e.weight, max_norm=1.0),
    "trained_weights_of_classes": lambda s, x, t: F.nll_loss(x[:, 0], t[:, 0], s.e.weight[0]),
    "loss_of_one_sample": lambda s, x, t: F.cross_entropy(x[0, 0], t[0, 0], reduction="none"),
}.items():
    CASES[_name] = Case(_name, lambda of=_function: _words(of, 7), ids(), "refused")


@case("equal", ids(7, 4, 5))
def losses_by_layers_with_weights() -> Any:
    weights = WEIGHTS.view(-1)[:7]
    return net(lambda self, t: self.a(self.e(t).transpose(1, 2), t) + self.b(self.e(t)[:, 0], t[:, 1]), e=nn.Embedding(7, 7),
               a=nn.CrossEntropyLoss(weights, ignore_index=5), b=nn.NLLLoss(weights, reduction="sum"))


@case("equal", ids(7, 4, 5))
def bag_of_rows() -> Any:
    return net(lambda self, t: self.a(t) + self.b(t), a=nn.EmbeddingBag(7, 3), b=nn.EmbeddingBag(7, 3, mode="sum"))


@case("equal", rows(3, 4, 6))
def plain_recurrence() -> Any:
    return net(lambda self, x: self.r(x)[0], r=nn.RNN(6, 4, 2, batch_first=True))


@case("equal", rows(4, 3, 6))
def plain_recurrence_both_ways() -> Any:
    def forward(self, x):
        y, h = self.r(x)
        return y, h.transpose(0, 1)

    return net(forward, r=nn.RNN(6, 4, 1, "relu", bias=False, bidirectional=True))


@case("equal", rows(3, 4, 6))
def cells_step_by_step() -> Any:
    def forward(self, x):
        h, c, g = x.new_zeros(3, 4), x.new_zeros(3, 4), self.plain(x[:, 0])
        for i in range(x.shape[1]):
            h, c = self.lstm(x[:, i], (h, c))
            g = self.gru(h, g)
        return g + c

    return net(forward, lstm=nn.LSTMCell(6, 4), gru=nn.GRUCell(4, 4, bias=False), plain=nn.RNNCell(6, 4))


@case("equal")
def codebook() -> Any:
    """A straight-through choice, as VQ-VAE has it."""
    def forward(self, x):
        z = self.a(x)
        chosen = self.book((z[:, None] - self.book.weight[None]).square().sum(-1).argmin(1))
        loss = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(chosen.detach(), z)
        return self.b(z + (chosen - z).detach()) + loss

    return net(forward, a=line(), b=line(), book=nn.Embedding(5, 6))


@case("equal")
def target_network() -> Any:
    """A part that learns from another one, which learns nothing from it, as in BYOL."""
    def forward(self, x):
        with torch.no_grad():
            wanted = F.normalize(self.b(x).view(2, 2, 6).transpose(1, 2), dim=-1)
        return (self.a(x).view(2, 2, 6) * wanted.transpose(1, 2)).sum(-1) + self.b(x * x).view(2, 2, 6).sum(-1)

    return net(forward, a=line(), b=line())


@case("equal")
def detached_and_moved() -> Any:
    return net(lambda self, x: self.b(x) @ self.a(x).t().detach() + self.a.weight.detach()[:4, :4], a=line(), b=line())
