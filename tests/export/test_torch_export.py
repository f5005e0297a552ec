"""An exported module under torchrun gives the losses and weights of PyTorch alone, and of taskflow's own runtime."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fast_and_slow import fast_among

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

sys.path.insert(0, str(Path(__file__).parent))
import networks  # noqa: E402
import unusual  # noqa: E402
from beside import TOLERANCE, check, in_taskflow  # noqa: E402

import taskflow  # noqa: E402
from taskflow.export import exported, require_running  # noqa: E402
from taskflow.export.pytorch.units import units_of  # noqa: E402
from taskflow.mapper import HadAgain  # noqa: E402
from taskflow.models.pytorch import origin_of, sites_of  # noqa: E402


def plan_for(name: str, plan: str, ranks: int, nearest: bool = False) -> tuple[taskflow.OperatorGraph, taskflow.Strategy, str]:
    graph = networks.graph(name)
    strategy = taskflow.choose(plan, graph, taskflow.load_machine("p100", ranks))[0]
    found = exported(graph, strategy, "torch", "parallel.py")
    assert nearest or not found.differences, [str(d) for d in found.differences]
    assert found.ranks == ranks
    return graph, found.nearest, found.files["parallel.py"]


def test_stages_in_a_v_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="deals stages to ranks in turn, and zbv has its second stages in reverse; use"):
        plan_for("llama", "p2 mb2 schedule=zbv", 2)


def test_fewer_micro_batches_than_stages_run_as_gpipe() -> None:
    """Which PyTorch's 1F1B refuses when ranks have met."""
    assert "schedule='ScheduleGPipe'" in plan_for("llama", "p2 mb8", 2)[2]
    assert "schedule='Schedule1F1B'" in plan_for("llama", "p2 mb4", 2)[2]


def test_frozen_layers_are_exported_as_the_module_has_them() -> None:
    assert "blocks.#" in plan_for("adapted", "d2 zero3 mb2", 2)[2]
    graph = taskflow.from_torch(networks.Adapted(), *networks.examples("adapted"), verify=False)
    strategy = taskflow.choose("data", graph, taskflow.load_machine("p100", 2))[0]
    graph.freeze("blocks.0.attention.wq.*")
    with pytest.raises(ValueError, match="the module of Adapted trains 1,024 parameters and the graph 768; freeze layers in the"):
        exported(graph, strategy, "torch", "parallel.py")
    with pytest.raises(ValueError, match="megatron: Adapted has frozen layers, which its configurations do not say"):
        exported(graph, strategy, "megatron", "run.sh")


def test_the_nearest_plan_in_micro_batches_is_a_plan() -> None:
    """Micro-batches add up the loss, so that it has no copies, though each rank has all of the scores."""
    graph, nearest, _ = plan_for("cnn", "t2 mb2", 2, nearest=True)
    nearest.verify(graph)
    assert nearest["loss"].copies == 1 and len(nearest["loss"].processors) == 4


@pytest.mark.parametrize("name,path", [("llama", "blocks.#"), ("gpt", "h.#")])
def test_blocks_are_computed_again_one_by_one(name: str, path: str) -> None:
    """Not the list of them, whose forward nobody calls, nor all at once, which would keep as much as none."""
    _, _, text = plan_for(name, "d2 recompute=full", 2)
    assert f"again=('{path}',)" in text and "whole=('" not in text


@pytest.mark.parametrize("name,path", [("llama", "blocks.#"), ("gpt", "h.#")])
def test_blocks_run_again_to_their_end_if_the_plan_says_so(name: str, path: str) -> None:
    graph, strategy, text = plan_for(name, "d2 recompute=whole", 2)
    assert strategy.again.rerun and f"again=('{path}',)" in text and f"whole=('{path}',)" in text
    names = strategy.again.rerun
    only, some = (
        replace(strategy, again=HadAgain(recompute=strategy.again.recompute, rerun=frozenset(rerun)))
        for rerun in ([one for one in names if ".0." in one], sorted(names)[:2])
    )
    again = exported(graph, only, "torch", "parallel.py")
    assert not again.differences and f"whole=('{path.replace('#', '0')}',)" in str(again.files["parallel.py"])
    loose = exported(graph, some, "torch", "parallel.py")
    assert len(loose.differences) == 1 and not loose.nearest.again.rerun


def test_one_of_two_blocks_is_computed_again() -> None:
    """A pattern of both would compute both again."""
    _, _, text = plan_for("llama", "d2 recompute=full*1,none*1", 2)
    assert "again=('blocks.0',)" in text


@pytest.mark.parametrize("whole", [False, True])
def test_a_recomputed_module_ends_early_unless_it_is_run_whole(whole: bool) -> None:
    """The last product's result is read by nothing in the backward pass."""
    from torch import nn

    from taskflow.export.pytorch.support.modules import recompute

    calls: list[str] = []
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    for name in ("0", "2"):
        block.get_submodule(name).register_forward_pre_hook(lambda module, args, name=name: calls.append(name))
    kernel = block[2].forward
    runs: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        result = kernel(x)
        runs.append(1)
        return result

    block[2].forward = counted
    recompute(block, contextlib.nullcontext, whole=whole)
    block(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert calls.count("0") == 2 and len(runs) == 1 + whole


def test_attention_cut_by_positions_is_refused() -> None:
    """PyTorch's kernel is given all positions of a rank's heads: a plan that counts on a part of them would promise too much."""
    graph = networks.graph("llama")
    strategy = taskflow.choose("c2 d2", graph, taskflow.load_machine("p100", 4))[0]
    found = exported(graph, strategy, "torch", "parallel.py")
    assert any("all positions" in difference.why for difference in found.differences)
    for block in range(2):
        attention = graph.node(f"blocks.{block}.attention.scaled_dot_product_attention.attention")
        assert strategy[attention.name].describe(attention).startswith("n/2 a1/2")
        assert found.nearest[attention.name].describe(attention).startswith("n/2 x2 @")
    for plan in ("t2 d2", "t4"):  # by heads
        assert not exported(graph, taskflow.choose(plan, graph, taskflow.load_machine("p100", 4))[0], "torch", "p.py").differences


def test_a_stage_that_needs_a_size_of_the_one_before_is_refused() -> None:
    """A stage begins in the middle of an attention, behind which its result gets the shape that its input had."""
    with pytest.raises(ValueError, match="needs a size of a tensor of an earlier stage"):
        plan_for("llama", "p2 d2 v4 mb1", 4)


@pytest.mark.parametrize("name", fast_among(["gpt2", "mixtral", "t5"], ["t5"]))
def test_the_stages_of_hugging_face_s_networks_compute_what_the_network_computes(name: str, tmp_path: Path) -> None:
    """Their forward cannot be traced by torch.fx, and so is recorded. Each stage computes positions by itself."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    _, _, text = plan_for(name, "p2 mb2", 2)
    (tmp_path / "stages.py").write_text(text)
    spec = importlib.util.spec_from_file_location(f"stages_of_{name}", tmp_path / "stages.py")
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = stages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stages)
    plan = stages.plan()
    assert plan.samples == networks.BATCH and len(plan.stages) == 2
    torch.manual_seed(0)
    module = networks.MODULES[name]()
    inputs = [value[:2] for value in networks.batch_of(name, torch.Generator().manual_seed(1))[0]]
    given = dict(zip(plan.inputs, inputs))
    values = plan.stages[0].run(module, *(given[key] for key in plan.stages[0].inputs))
    values = values if isinstance(values, tuple) else (values,)
    scores = plan.stages[1].run(module, *values, *(given[key] for key in plan.stages[1].inputs))
    torch.testing.assert_close(scores, module(*inputs))
    names = {path for path, _ in module.named_parameters(remove_duplicate=False)}
    for stage in plan.stages:
        names -= {path for path in names if any(path == part or path.startswith(f"{part}.") for part in stage.parts)}
    assert not {path for path in names if not path.endswith(("shared.weight", "embed_tokens.weight"))}, "each is in a stage"


def test_a_module_that_was_not_planned_is_refused_before_ranks_meet() -> None:
    from taskflow.export.pytorch.support.modules import require_planned
    from taskflow.export.pytorch.support.plan import LayerPlan, ParallelPlan

    module = networks.CNN()
    count = sum(parameter.numel() for parameter in module.parameters())
    cut = {"convs.#": LayerPlan((), {}, (), ()), "fc1": LayerPlan((), {}, (), ())}
    _, _, text = plan_for("cnn", "expert", 2)
    assert f"elements={count}," in text
    require_planned(module, ParallelPlan({}, {"fc1": cut["fc1"]}, units=("fc2",), elements=count))
    with pytest.raises(ValueError, match=r"CNN has no convs\.#; give parallelize the module that was imported, or"):
        require_planned(module, ParallelPlan({}, cut))
    with pytest.raises(ValueError, match=f"another module: CNN has {count:,} parameters, not {count + 1:,}, no h;"):
        require_planned(module, ParallelPlan({}, {}, units=("h",), elements=count + 1))


class Borrowing(torch.nn.Module):
    """Uses the weight of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.lent, self.last = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.nn.functional.linear(self.inner(x), self.lent.weight))


def test_each_layer_gathers_by_itself_but_for_weights_that_are_read_elsewhere() -> None:
    units = {name: units_of(networks.graph(name), networks.MODULES[name](), sites_of(networks.graph(name))[0])
             for name in ("llama", "gpt")}
    assert {"table", "blocks.#.norm1", "blocks.#.attention.wq", "blocks.#.mlp.w2", "norm", "head"} <= set(units["llama"])
    assert {"places", "h.#.q", "h.#.mlp.#", "norm"} <= set(units["gpt"])
    assert not {"words", "scores"} & set(units["gpt"])  # one weight: with the whole
    blocks = [units_of(networks.graph(name), networks.MODULES[name](), sites_of(networks.graph(name))[0], in_blocks=True)
              for name in ("llama", "gpt")]
    assert [set(units) for units in blocks] == [{"table", "blocks.#", "norm", "head"}, {"places", "h.#", "norm"}]
    module = Borrowing()
    graph = taskflow.from_torch(module, torch.zeros(4, 8))
    assert units_of(graph, module, sites_of(graph)[0]) == ("inner.#", "last")


def test_no_unit_holds_a_weight_that_is_read_outside_of_it() -> None:
    """PyTorch refuses a weight that two units hold: BERT's head has its bias itself and the table's weight within."""
    graph = unusual.graph("head")
    assert units_of(graph, unusual.MODULES["head"](), sites_of(graph)[0]) == ("layers.#", "head.dense")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_without_float32_copies_is_said(dtype: Any) -> None:
    """A network of 16 bits is planned with them, and its module has none."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).to(dtype)
    graph = taskflow.from_torch(module, (4, 8))
    found = exported(graph, taskflow.choose("data", graph, taskflow.load_machine("p100", 2))[0], "torch", "parallel.py")
    note = "weights, gradients and the optimizer's state are bfloat16, as the module has them; the plan's memory and time"
    assert any(said.startswith(note) for said in found.notes) is (dtype is torch.bfloat16)
    assert (note in found.files["parallel.py"]) is (dtype is torch.bfloat16)


@pytest.mark.parametrize("plan,ranks", [("d2", 2), ("t2", 2), ("t2 d2 zero1 mb2", 4)])
def test_tables_without_samples_are_on_every_rank(plan: str, ranks: int) -> None:
    """A T5's biases by distance. Every replica has them in the plan, too. Where a group has them in pieces there, that every rank
    has them is said, and counted."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    graph = networks.graph("t5")
    strategy = taskflow.choose(plan, graph, taskflow.load_machine("p100", ranks))[0]
    found = exported(graph, strategy, "torch", "parallel.py")
    assert not found.differences and found.nearest is strategy
    bias, cut = "SelfAttention.relative_attention_bias", "t2" in plan
    assert any(f"every rank has all of net.encoder.block.0.layer.0.{bias}, net.dec" in note for note in found.notes) is cut
    assert cut or not exported(graph, strategy, "jax", "parallel.py").differences
    tables = 4 * 2 * 8 * 4 * 4  # four arrays for each of two tables, of 8 distances for 4 heads
    assert found.more_bytes >= tables or not cut


@pytest.mark.parametrize("name,plan,ranks", fast_among(
    NEAREST := [("masked", "t2 d2", 4), ("gpt2", "t2", 2), ("mixtral", "t2 d2", 4)], [NEAREST[0], NEAREST[2]],
))
def test_the_nearest_plan_is_expressible_and_trains_here_as_pytorch_alone(name: str, plan: str, ranks: int) -> None:
    """What a mesh has on several ranks is so in the plan, too: in copies, which give each gradient once."""
    if name != "masked":
        pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    graph, nearest, _ = plan_for(name, plan, ranks, nearest=True)
    again = exported(graph, nearest, "torch", "parallel.py")
    assert not again.differences and any(config.copies > 1 for config in nearest.configs.values())
    assert in_taskflow(name, graph, nearest) == pytest.approx(networks.trained_alone(name, 5)[0], rel=TOLERANCE)


CASES = [
    ("llama", "data", 2), ("llama", "t2", 2), ("llama", "d2 zero1 mb2", 2), ("llama", "t2 d2", 4), ("llama", "t2 d2 zero1 mb2", 4),
    ("llama", "megatron", 4), ("llama", "t2 p2 mb2", 4), ("llama", "p2 d2 mb1 zero1", 4),
    ("llama", "p2 mb2 recompute=full", 2), ("gpt", "t2", 2), ("gpt", "t2 d2 recompute=full", 4), ("gpt", "p2 mb2", 2),
    ("llama", "t2 d2 recompute=whole", 4),
    ("gpt", "p2 mb2 schedule=gpipe", 2), ("gpt", "p2 v2 mb2", 2), ("gpt", "p2 mb2 schedule=zb-h1", 2), ("gpt", "t2 p2 mb2", 4),
    ("resnet", "data", 2), ("resnet", "data", 4), ("cnn", "data", 2), ("cnn", "expert", 2), ("cnn", "expert", 4),
    ("llama", "d2 zero3 mb2", 2), ("llama", "d4 zero3 hsdp2", 4), ("llama", "t2 d2 zero3 mb2", 4), ("mixtral", "d4 zero1 mb1", 4),
    ("t5", "d2", 2), ("t5", "t2", 2), ("t5", "t2 d2 zero1 mb2", 4), ("t5", "d4 zero3 mb1", 4),
    ("gpt2", "p2 mb2", 2), ("gpt2", "p2 d2 mb1 zero1", 4), ("mixtral", "p2 mb2", 2), ("t5", "p4 mb2", 4), ("llama", "p2 mb8", 2),
    ("adapted", "data", 2), ("adapted", "d2 zero3 mb2", 2), ("adapted", "t2", 2), ("adapted", "d2 zero1 mb2", 2),
    ("adapted", "p2 mb2", 2),
]


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("name,plan,ranks", CASES, ids=[f"{n} {p} on {r}" for n, p, r in CASES])
def test_plans_train_as_pytorch_alone_and_as_here(name: str, plan: str, ranks: int, tmp_path: Path) -> None:
    if name in ("gpt2", "mixtral", "t5"):
        pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    graph, strategy, text = plan_for(name, plan, ranks)
    losses = check(tmp_path, name, text, ranks)
    assert losses == pytest.approx(in_taskflow(name, graph, strategy), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_mixtral_for_four_devices_trains_as_pytorch_alone_and_as_here(tmp_path: Path) -> None:
    """Attention and the output layer are cut; routing and experts, which no placement of DTensor's says, are on each rank of a
    group of two."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    graph, strategy, text = plan_for("mixtral", "t2 d2", 4, nearest=True)
    layer = "net.model.layers.0"
    q, experts = (graph.node(f"{layer}.{name}") for name in ("self_attn.q_proj", "mlp.experts.gate_proj"))
    assert strategy[q.name].describe(q).startswith("n/2 c/2") and strategy[experts.name].describe(experts).startswith("n/2 x2 @")
    losses = check(tmp_path, "mixtral", text, 4)
    assert losses == pytest.approx(in_taskflow("mixtral", graph, strategy), rel=TOLERANCE)


def exported_llama() -> taskflow.OperatorGraph:
    torch.manual_seed(0)
    return taskflow.from_torch(torch.export.export(networks.Llama(), tuple(networks.examples("llama"))), name="llama")


def test_of_a_program_of_torch_export_only_samples_are_divided() -> None:
    graph, machine = exported_llama(), taskflow.load_machine("p100", 2)
    for plan in ("t2", "p2 mb2", "d2 recompute=full"):
        with pytest.raises(ValueError, match=r"import the torch\.nn\.Module itself"):
            exported(graph, taskflow.choose(plan, graph, machine)[0], "torch", "parallel.py")
    found = exported(graph, taskflow.choose("d2 zero3 mb2", graph, machine)[0], "torch", "parallel.py")
    assert not found.differences and "'blocks.#'" in found.files["parallel.py"]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_program_of_torch_export_trains_as_its_module(tmp_path: Path) -> None:
    graph = exported_llama()
    strategy = taskflow.choose("d2 zero3 mb2", graph, taskflow.load_machine("p100", 2))[0]
    check(tmp_path, "llama", exported(graph, strategy, "torch", "parallel.py").files["parallel.py"], 2)


def hugging_face_gpt2() -> tuple[taskflow.OperatorGraph, taskflow.Strategy, str]:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    return plan_for("gpt2", "t2", 2, nearest=True)


def test_the_linear_layers_of_hugging_face_s_gpt2_are_cut_along_the_other_axis_of_their_weights() -> None:
    graph, strategy, text = hugging_face_gpt2()
    up, down = (graph.node(f"net.transformer.h.0.mlp.{name}") for name in ("c_fc", "c_proj"))
    assert up.operator.kind == down.operator.kind == "linear"
    assert up.parameters[0].shape == (128, 32), "as in other linear layers; there it is (32, 128)"
    assert strategy[up.name].describe(up).startswith("c/2") and strategy[down.name].describe(down).startswith("k/2")
    lines = {name: next(line for line in text.splitlines() if f"mlp.{name}" in line and "weight" in line) for name in (
        "c_fc", "c_proj",
    )}  # fmt: skip
    assert '"weight": (S1,), "bias": (S0,)' in lines["c_fc"] and '"weight": (S0,)' in lines["c_proj"]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_hugging_face_s_gpt2_trains_as_pytorch_alone_and_as_here(tmp_path: Path) -> None:
    graph, strategy, text = hugging_face_gpt2()
    assert check(tmp_path, "gpt2", text, 2) == pytest.approx(in_taskflow("gpt2", graph, strategy), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("plan", ["t2 d2", "d2 t2 zero1"])
def test_a_resnet_with_cut_layers_on_several_replicas_trains_as_pytorch_alone_and_as_here(plan: str, tmp_path: Path) -> None:
    graph, strategy, text = plan_for("resnet", plan, 4, nearest=True)
    assert strategy["head"].describe(graph.node("head")).startswith("n/2 c/2") and "statistics=True" in text
    assert check(tmp_path, "resnet", text, 4) == pytest.approx(in_taskflow("resnet", graph, strategy), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("plan,ranks", [("t2", 2), ("t2 d2", 4)])
def test_masks_biases_and_padding_of_cut_attention_train_as_pytorch_alone_and_as_here(
    plan: str, ranks: int, tmp_path: Path
) -> None:
    graph, strategy, text = plan_for("masked", plan, ranks, nearest=True)
    attention = graph.node("scaled_dot_product_attention")
    assert "a1/2" in strategy[attention.name].describe(attention) and "rows=True" in text, "heads and words are cut"
    assert check(tmp_path, "masked", text, ranks) == pytest.approx(in_taskflow("masked", graph, strategy), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_llama_of_which_positions_are_gathered_for_attention_trains_as_pytorch_alone(tmp_path: Path) -> None:
    _, _, text = plan_for("llama", "c2 d2", 4, nearest=True)
    check(tmp_path, "llama", text, 4)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("name", ["llama", "gpt", "cnn"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_nearest_to_a_random_plan_trains_as_pytorch_alone(name: str, seed: int, tmp_path: Path) -> None:
    graph = networks.graph(name)
    strategy = taskflow.choose("random", graph, taskflow.load_machine("p100", 4), seed=seed)[0]
    found = exported(graph, strategy, "torch", "parallel.py")
    assert found.differences
    check(tmp_path, name, found.files["parallel.py"], found.ranks)


class Windows(torch.nn.Module):
    """Turns its channels, which ``t`` cuts, as Swin does its windows: DTensor refuses the view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 64, bias=False), torch.nn.Linear(64, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).view(8, 2, 4, 8).transpose(1, 2).contiguous().view(-1, 2, 8).view(8, 64))


@pytest.mark.parametrize("plan", ["t2", "d2"])
def test_code_that_fails_on_pieces_is_refused_at_the_export(plan: str) -> None:
    graph = taskflow.from_torch(Windows(), torch.zeros(8, 8))
    found = exported(graph, taskflow.choose(plan, graph, taskflow.load_machine("p100", 2))[0], "torch", "parallel.py")
    if plan == "d2":
        require_running(graph, found, "torch")
        return
    with pytest.raises(ValueError, match=r"the code of Windows does not work on pieces .*test_torch_export.*export a plan that"):
        require_running(graph, found, "torch")


def test_functions_that_pytorch_knows_without_numbers_for_other_types_alone_do_not_end_the_look() -> None:
    """Products in groups of float32, which a CPU has: as experts of Hugging Face's networks make them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taskflow.export.pytorch.without_numbers import OnZeros
    from taskflow.models.pytorch import quietly

    def product() -> Any:
        return torch._grouped_mm(torch.empty(8, 16), torch.empty(2, 16, 32), offs=torch.empty(2, dtype=torch.int32))

    with FakeTensorMode(), quietly():
        with pytest.raises(RuntimeError, match="BFloat16"):
            product()
        with OnZeros():
            assert product().shape == (8, 32) and type(product()).__name__ == "FakeTensor"
            with pytest.raises(RuntimeError, match="invalid for input of size 8"):
                torch.empty(8).view(3, 3)


def test_a_piece_of_another_size_than_pytorch_counts_on_is_seen() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from taskflow.export.pytorch.without_numbers import _require_pieces

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        for rows, whole, fits in ((2, 4, True), (3, 5, True), (3, 4, False)):
            value = DTensor.from_local(torch.zeros(rows, 3), mesh, (Shard(0),), run_check=False, shape=(whole, 3), stride=(3, 1))
            if fits:
                _require_pieces("convolution", [value])
                continue
            with pytest.raises(ValueError, match=r"convolution makes a piece of \(3, 3\) where PyTorch counts on \(2, 3\)"):
                _require_pieces("convolution", [value])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["llama", "gpt", "resnet"])
def test_code_that_works_on_pieces_is_called_without_a_trace(name: str) -> None:
    graph = networks.graph(name)
    before = {key: value.clone() for key, value in origin_of(graph).module.state_dict().items()}
    found = exported(graph, taskflow.choose("t2", graph, taskflow.load_machine("p100", 2))[0], "torch", "parallel.py")
    require_running(graph, found, "torch")
    assert not torch.distributed.is_initialized()
    after = origin_of(graph).module.state_dict()
    assert all(type(after[key]) is type(value) and torch.equal(after[key], value) for key, value in before.items())
