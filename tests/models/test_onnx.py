"""ONNX: networks from files compute what ONNX's reference computes; plans as device configurations are read back as they were."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pipelines import decoder, random_pipeline
from random_networks import network

import taskflow
from taskflow.cli.main import main
from taskflow.mapper import (
    DataParallel,
    Exchange,
    HadAgain,
    MessageSync,
    OpConfig,
    ShardedSync,
    Strategy,
    SyncAlgorithm,
    UpdatePlacement,
    map_graph,
)
from taskflow.models import build
from taskflow.models.notes import ImportNote
from taskflow.models.onnx import config_of, export_onnx, from_onnx, read_onnx_plan, specs_of

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'soap-taskflow[onnx]'")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from taskflow.models.onnx.follow import numbers_of as plain  # noqa: E402
from taskflow.models.onnx.verify import _feeds as feeds  # noqa: E402

H = onnx.helper
FLOAT, LONG = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(nodes: list[Any], inputs: dict[str, tuple[int | str, ...]], opset: int = 20, **arrays: Any) -> Any:
    """A model whose last node's first output is its output; inputs called ``ids`` are integers."""
    given = [H.make_tensor_value_info(name, LONG if name == "ids" else FLOAT, shape) for name, shape in inputs.items()]
    kept = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    output = H.make_empty_tensor_value_info(nodes[-1].output[0])
    graph = H.make_graph(nodes, "net", given, [output], initializer=kept)
    return H.make_model(graph, opset_imports=[H.make_opsetid("", opset)])


def weights(*shape: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed + len(shape)).normal(size=shape) * 0.5).astype("float32")


def convolutions() -> Any:
    return model(
        [
            H.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), H.make_node("Relu", ["c"], ["r"], "relu"),
            H.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            H.make_node("Flatten", ["p"], ["f"], "flat"), H.make_node("Gemm", ["f", "v", "d"], ["y"], "scores", transB=1),
        ], {"x": (4, 3, 6, 6)}, w=weights(5, 3, 3, 3), b=weights(5), v=weights(7, 45), d=weights(7),
    )


def attention() -> Any:
    """Words, a norm, a product with a matrix, shapes computed of shapes, scores of equal words."""
    numbers = {"two": np.array([2], np.int64), "shape": np.array([0, 5, 2, 4], np.int64), "half": np.float32(0.5)}
    return model(
        [
            H.make_node("Gather", ["table", "ids"], ["e"], "words"),
            H.make_node("LayerNormalization", ["e", "g", "h"], ["n"], "norm"),
            H.make_node("MatMul", ["n", "w"], ["m"], "qkv"), H.make_node("Add", ["m", "b"], ["q"], "biased"),
            H.make_node("Reshape", ["q", "shape"], ["s"], "heads"),
            H.make_node("Transpose", ["s"], ["t"], "turned", perm=[0, 2, 1, 3]),
            H.make_node("Transpose", ["s"], ["k"], "keys", perm=[0, 2, 3, 1]), H.make_node("MatMul", ["t", "k"], ["a"], "scores"),
            H.make_node("Mul", ["a", "half"], ["l"], "scaled"), H.make_node("Softmax", ["l"], ["z"], "soft", axis=-1),
            H.make_node("MatMul", ["z", "t"], ["o"], "values"), H.make_node("Transpose", ["o"], ["u"], "back", perm=[0, 2, 1, 3]),
            H.make_node("Shape", ["e"], ["es"], "size"), H.make_node("Reshape", ["u", "es"], ["j"], "joined"),
            H.make_node("Add", ["j", "e"], ["r"], "residual"), H.make_node("Gelu", ["r"], ["y0"], "gelu"),
            H.make_node("MatMul", ["y0", "v"], ["y"], "out"),
        ], {"ids": (3, 5)}, table=weights(11, 8), g=weights(8), h=weights(8, seed=1), w=weights(8, 8), b=weights(8, seed=2),
        v=weights(8, 11), **numbers,
    )


def shapes() -> Any:
    return model(
        [
            H.make_node("Split", ["x"], ["a", "b"], "split", axis=1, num_outputs=2), H.make_node("Sub", ["a", "b"], ["s"], "sub"),
            H.make_node("Concat", ["s", "a"], ["c"], "cat", axis=1), H.make_node("Slice", ["c", "lo", "hi", "ax"], ["d"], "slice"),
            H.make_node("Unsqueeze", ["d", "ax"], ["u"], "wide"), H.make_node("Squeeze", ["u", "ax"], ["q"], "flat"),
            H.make_node("Pow", ["q", "p"], ["w"], "square"), H.make_node("ReduceMean", ["w", "ax"], ["m"], "mean", keepdims=1),
            H.make_node("Sqrt", ["m"], ["r"], "root"), H.make_node("Div", ["q", "r"], ["y"], "unit"),
        ], {"x": (4, 6)}, lo=np.array([1], np.int64), hi=np.array([5], np.int64), ax=np.array([1], np.int64), p=np.float32(2),
    )


@pytest.mark.parametrize("make", [convolutions, attention, shapes])
def test_a_file_computes_what_onnx_computes(make: Any, tmp_path: Path) -> None:
    file, made, found = tmp_path / "net.onnx", make(), {}
    onnx.save(made, str(file))
    graph = from_onnx(file, weights=found)
    assert graph.name == "net" and set(found) == {p.name for p in graph.parameters}
    numbers = np.random.default_rng(3)
    feeds = {
        i.name: numbers.integers(0, 11, [d.dim_value for d in i.type.tensor_type.shape.dim]) if i.name == "ids"
        else numbers.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim]).astype("float32") for i in made.graph.input
    }
    (theirs,) = ReferenceEvaluator(made).run(None, feeds)
    scores = next(node for node in graph if node.operator.kind == "cross_entropy").inputs[0]
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0], taskflow.SGD(lr=0.1))
    run.set_parameters(found)
    ours = run.evaluate_with(feeds | {"labels": np.zeros(scores.shape[:-1], np.int64)}, [scores])[1][scores.name]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_file_is_a_model_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(convolutions(), str(file))
    done = CliRunner().invoke(main, ["search", str(file), "-m", "a100", "-n", "2", "--budget", "20p"])
    assert done.exit_code == 0 and "net: 8 operators" in done.stdout, done.output
    wrong = CliRunner().invoke(main, ["search", str(file), "--set", "width=3", "-m", "a100", "-n", "2"])
    assert wrong.exit_code == 2 and "an ONNX file has no setting 'width'" in wrong.stderr


@pytest.mark.parametrize("made, why", [
    (lambda: model([H.make_node("Det", ["x"], ["y"], "size")], {"x": (3, 3)}), r"net: node size \(Det\): no counterpart"),
    (lambda: model([H.make_node("Softmax", ["x"], ["y"], "soft", strange=3)], {"x": (2, 3)}), "soft .*strange=3 is not understood"),
    (lambda: model([H.make_node("Relu", ["x"], ["y"], "r")], {"x": ("n", 3)}),
     r"input x: dimension 0 \(n\) has no size; give batch"),
    (lambda: model([H.make_node("MatMul", ["x", "z"], ["y"], "m")], {"x": (2, 3, 3), "z": (4, 3, 3)}),
     "leading dimensions must be equal"),
    (lambda: model([H.make_node("DepthToSpace", ["x"], ["y"], "d", blocksize=2, mode=b"\xb6CR")], {"x": (1, 4, 2, 2)}),
     r"node d \(DepthToSpace\): mode='.*xb6CR'; only DCR and CRD"),  # bytes that are no text
])
def test_what_is_not_understood_is_refused_by_its_node(made: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_onnx(made())


def test_a_batch_is_given_to_an_input_without_one() -> None:
    made = model([H.make_node("Gemm", ["x", "w"], ["y"], "fc", transB=1)], {"x": ("n", 3)}, w=weights(5, 3))
    assert from_onnx(made, batch=6).node("fc").outputs[0].shape == (6, 5)


# ---- what arrives, and what is said -------------------------------------------------------------------------------------


def norms() -> Any:
    """Two convolutions with batch normalisation, each with statistics of its own."""
    nodes = []
    for i, x in enumerate(("x", "r0")):
        nodes += [
            H.make_node("Conv", [x, f"w{i}"], [f"c{i}"], f"conv{i}"),
            H.make_node("BatchNormalization", [f"c{i}", f"s{i}", f"b{i}", f"m{i}", f"v{i}"], [f"n{i}"], f"norm{i}", epsilon=1e-3),
            H.make_node("Relu", [f"n{i}"], [f"r{i}"], f"relu{i}"),
        ]
    arrays = {f"{name}{i}": weights(3, seed=7 * i + ord(name)) ** 2 + 0.5 for name in "sbmv" for i in (0, 1)}
    return model(nodes + [H.make_node("Flatten", ["r1"], ["y"], "flat")], {"x": (2, 3, 4, 4)}, w0=weights(3, 3, 1, 1),
                 w1=weights(3, 3, 2, 2), **arrays)


def test_all_arrays_of_batch_normalisation_arrive() -> None:
    found: dict[str, Any] = {}
    made = norms()
    graph = from_onnx(made, weights=found, loss=None)
    names = {f"norm{i}.{part}" for i in (0, 1) for part in ("weight", "bias", "running_mean", "running_var")}
    assert set(found) == names | {"conv0.weight", "conv1.weight"}
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0])
    run.set_parameters(found)
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 4)).astype("float32")
    np.testing.assert_allclose(run.predict({"x": x}), ReferenceEvaluator(made).run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_a_node_whose_weight_would_be_left_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskflow.models.onnx.context import HANDLERS

    def forgetful(c: Any, node: Any) -> Any:
        return taskflow.batch_norm(c.tensor(node, 0))

    monkeypatch.setitem(HANDLERS, "BatchNormalization", forgetful)
    with pytest.raises(ValueError, match=r"net: node norm0 \(BatchNormalization\): initializer s0 would be left out"):
        from_onnx(norms())


def test_an_import_proves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that computes something else is named; without the proof nobody sees it."""
    from taskflow.models.onnx.context import HANDLERS

    monkeypatch.setitem(HANDLERS, "Relu", lambda c, node: taskflow.gelu(c.tensor(node, 0), name=node.name))
    with pytest.raises(ValueError, match=r"the result of node relu0 \(Relu\) differs"):
        from_onnx(norms())
    assert from_onnx(norms(), verify=False).name == "net"


@pytest.mark.parametrize("which", ["scale", "mean"])
def test_the_proof_does_not_rest_on_zeros_and_ones(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh normalisation has scales of 1 and means of 0: exchanging them with the bias must be seen all the same."""
    from taskflow.models.onnx import verify

    monkeypatch.setattr(verify, "numbers_of", lambda account, arrays: {
        name: np.zeros_like(array) if name.endswith("bias" if which == "scale" else "running_mean") else array
        for name, array in plain(account, arrays).items()
    })
    made = norms()
    for array in made.graph.initializer:
        if array.name[0] in "sbmv":
            value = np.full(3, float(array.name[0] in "sv"), "float32")
            array.CopyFrom(onnx.numpy_helper.from_array(value, array.name))
    with pytest.raises(ValueError, match="norm0"):
        from_onnx(made)


def test_a_model_that_costs_too_much_is_not_verified_which_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskflow.models.onnx import verify

    monkeypatch.setattr(verify, "MOST_PARAMETERS", 10)
    with pytest.warns(UserWarning, match="net was not verified: 57 parameters .* pass verify=False"):
        from_onnx(norms())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_onnx(norms(), verify=False)


def test_a_large_batch_is_verified_with_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskflow.models.onnx import verify

    seen = []
    monkeypatch.setattr(verify, "FEW_FLOPS", 0.0)
    monkeypatch.setattr(verify, "_feeds", lambda context, numbers: seen.append(feeds(context, numbers)) or seen[-1])
    made = model([H.make_node("Gemm", ["x", "w"], ["y"], "fc", transB=1)], {"x": ("n", 3)}, w=weights(5, 3))
    assert from_onnx(made, batch=64).node("fc").outputs[0].shape == (64, 5)
    assert seen[0]["x"].shape == (2, 3)


def test_what_is_left_out_is_said() -> None:
    made = model(
        [H.make_node("Relu", ["x"], ["r"], "r"), H.make_node("Mul", ["x", "dead"], ["d"], "dead"),
         H.make_node("Gemm", ["r", "w"], ["y"], "fc", transB=1)], {"x": (2, 3), "also": (2, 3)}, w=weights(5, 3), dead=weights(3),
    )
    made.graph.output.append(H.make_empty_tensor_value_info("r"))
    with pytest.warns(ImportNote) as said:
        graph = from_onnx(made)
    assert [str(w.message) for w in said] == [
        "from_onnx: net: no operator of the graph needs initializer dead: left out",
        "from_onnx: net: no operator of the graph needs input also: left out",
        "from_onnx: net: the loss is of output y alone, not of r",
    ]
    assert [node.name for node in graph] == ["x", "r", "fc", "labels", "loss"]


def test_a_weight_of_two_layers_is_one_parameter_also_if_one_reads_it_transposed() -> None:
    for second in ("MatMul", "Gemm"):
        found: dict[str, Any] = {}
        made = model(
            [H.make_node("Gather", ["w", "ids"], ["e"], "words"), H.make_node("Transpose", ["w"], ["t"], "turned"),
             H.make_node("Reshape", ["e", "flat"], ["f"], "rows"), H.make_node(second, ["f", "t"], ["y"], "scores")],
            {"ids": (2, 3)}, w=weights(11, 4), flat=np.array([6, 4], np.int64),
        )
        graph = from_onnx(made, weights=found)
        assert graph.parameter_count == 44 and list(found) == ["words.weight"]


def test_equal_vectors_that_an_exporter_merged_are_trained_by_themselves() -> None:
    found: dict[str, Any] = {}
    made = model(
        [H.make_node("Gemm", ["x", "v", "zero"], ["h"], "a", transB=1),
         H.make_node("Gemm", ["h", "w", "zero"], ["y"], "b", transB=1)],
        {"x": (2, 3)}, v=weights(3, 3), w=weights(3, 3, seed=1), zero=np.zeros(3, "float32"),
    )
    with pytest.warns(ImportNote, match="several layers read the vector zero: each has a copy"):
        graph = from_onnx(made, weights=found)
    assert set(found) == {"a.weight", "a.bias", "b.weight", "b.bias"} and graph.parameter_count == 24


def test_dropout_of_a_file_is_dropout_in_training_alone() -> None:
    made = model([H.make_node("Dropout", ["x", "p"], ["y"], "drop")], {"x": (4, 50)}, p=np.float32(0.25))
    graph = from_onnx(made, loss=None)
    assert graph.node("drop").operator.p == 0.25


def test_the_command_line_says_notes_and_takes_verify(tmp_path: Path) -> None:
    made = norms()
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights(3), "dead"))
    onnx.save(made, str(tmp_path / "net.onnx"))
    for more in ((), ("--set", "verify=False")):
        done = CliRunner().invoke(main, ["simulate", str(tmp_path / "net.onnx"), "-m", "a100", "-n", "2", *more])
        assert done.exit_code == 0, done.output
        assert done.stderr.splitlines()[0] == "from_onnx: net: no operator of the graph needs initializer dead: left out"


@pytest.mark.parametrize("made, why", [
    (lambda: model([H.make_node("Gemm", ["gone", "w"], ["y"], "fc", transB=1)], {"x": (4, 8)}, w=weights(5, 8)),
     r"node fc \(Gemm\): reads 'gone', which no input, initializer or earlier node makes"),
    (lambda: model([H.make_node("Relu", [""], ["y"], "r")], {"x": (4, 8)}), r"node r \(Relu\): reads nothing"),
    (lambda: model([H.make_node("MatMul", ["x", ""], ["y"], "m")], {"x": (4, 8)}), r"node m \(MatMul\): input 1 is missing"),
    (lambda: model([H.make_node("Relu", ["x"], ["y"], "r"), H.make_node("Tanh", ["x"], ["y"], "t")], {"x": (4, 8)}),
     r"node t \(Tanh\): writes 'y', which is there already"),
    (lambda: model([H.make_node("RandomNormalLike", ["x"], ["r"], "noise"), H.make_node("Add", ["x", "r"], ["y"], "a")],
                   {"x": (4, 8)}), r"node noise \(RandomNormalLike\): draws random numbers"),
    (lambda: model([H.make_node("MaxPool", ["x"], ["p", "at"], "pool", kernel_shape=[2, 2]),
                    H.make_node("Neg", ["at"], ["y"], "n")], {"x": (1, 1, 4, 4)}),
     r"node n \(Neg\): reads at: where a MaxPool found its largest"),
    (lambda: model([H.make_node("LayerNormalization", ["x", "x", "b"], ["y"], "norm")], {"x": (4, 8)}, b=weights(8)),
     r"node norm \(LayerNormalization\): input 1 \(x\) must be an initializer"),
    (lambda: model([H.make_node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": (1, 3, 4, 4), "b": (2,)}, w=weights(2, 3, 1, 1)),
     r"node conv \(Conv\): input 2 \(b\) must be an initializer"),
    (lambda: model([H.make_node("MatMul", ["x", "w"], ["y"], "m")], {"x": (4, 8)}, w=weights(8, 3).astype("float16")),
     r"node m \(MatMul\): input 1 \(w\) is float16; only float32"),
    (lambda: model([H.make_node("Softmax", ["x"], ["y"], "soft")], {"x": (4, 8, 2)}, opset=11),
     r"node soft \(Softmax\): opset 11 has it over all dimensions from 1 on"),
])
def test_files_that_say_no_network_are_refused_in_one_line(made: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        from_onnx(made())
    assert "\n" not in str(error.value)


def test_an_if_is_refused_with_the_truth() -> None:
    branch = H.make_graph([H.make_node("Relu", ["x"], ["o"])], "one", [], [H.make_empty_tensor_value_info("o")])
    made = model([H.make_node("If", ["c"], ["y"], "chosen", then_branch=branch, else_branch=branch)], {"x": (4, 8)})
    made.graph.input.append(H.make_tensor_value_info("c", onnx.TensorProto.BOOL, ()))
    with pytest.raises(ValueError, match=r"node chosen \(If\): chooses between two graphs when it runs"):
        from_onnx(made)


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LeNet", "Llama", "MoE", "NMT", "RNNLM"])
@pytest.mark.parametrize("mapper", ["data", "expert", "random", "megatron"])
def test_a_plan_is_read_back_as_it_was(name: str, mapper: str, tmp_path: Path) -> None:
    graph = build(name, 8, 4, preset="small")
    strategy, _ = taskflow.choose(mapper, graph, taskflow.load_machine("a100", 4), seed=5)
    made = export_onnx(graph, strategy, tmp_path / "plan.onnx")
    onnx.checker.check_model(made)
    assert made.ir_version == 14 and made.configuration[0].num_devices == 4
    assert read_onnx_plan(tmp_path / "plan.onnx", graph) == strategy


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_and_device_sets_are_read_back_also_from_specs_alone(seed: int) -> None:
    graph = network(seed)[0]
    strategy, _ = taskflow.choose("random", graph, taskflow.host(5), seed=seed)
    made = export_onnx(graph, strategy)
    assert read_onnx_plan(made, graph) == strategy
    for node in graph:
        specs = list(specs_of(node, strategy[node.name]))
        again = config_of(node, specs)
        if again is not None:
            assert list(specs_of(node, again)) == specs


def test_specs_alone_say_plans_whose_pieces_are_pieces_of_tensors() -> None:
    graph = build("Llama", 8, 4, preset="small")
    for mapper in ("data", "megatron", "random"):
        strategy, _ = taskflow.choose(mapper, graph, taskflow.load_machine("a100", 4), seed=1)
        made = export_onnx(graph, strategy)
        for node in made.graph.node:
            del node.metadata_props[:]
        assert read_onnx_plan(made, graph) == strategy


def test_what_onnx_has_no_words_for_is_kept_too() -> None:
    for seed in range(4):
        graph = decoder()
        strategy = random_pipeline(graph, 4, Random(seed))
        made = export_onnx(graph, strategy)
        assert read_onnx_plan(made, graph) == strategy
        if strategy.pipeline is not None:
            stages = {n.name: n.device_configurations[0].pipeline_stage for n in made.graph.node}
            assert stages == {node.name: strategy.pipeline.stages.get(node.name, 0) for node in graph}
    graph = build("mlp", 8, 2, preset="small")
    plain = map_graph(DataParallel(), graph, taskflow.host(2))
    node = next(n for n in graph if n.parameters)
    uneven = OpConfig(plain[node.name].degrees, (1, 0), tuple((1.0, 3.0) if k > 1 else () for k in plain[node.name].degrees))
    strategy = Strategy(
        2, {**plain.configs, node.name: uneven},
        {node.name: MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED, 2)}, "mine",
        SyncAlgorithm.COLLECTIVE, exchange=Exchange.COLLECTIVES,
    )
    assert read_onnx_plan(export_onnx(graph, strategy), graph) == strategy
    sharded = ShardedSync(zero=3, shard_group=2, prefetch=2)
    strategy = Strategy(2, plain.configs, {node.name: sharded}, again=HadAgain(recompute=frozenset({node.name})))
    assert read_onnx_plan(export_onnx(graph, strategy), graph) == strategy


@pytest.mark.parametrize("plan", ["t2 p2 mb2 recompute=full", "d4 zero3", "t2 d2", "random"])
def test_the_command_writes_a_plan_that_is_read_back_as_it_was(plan: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.onnx"
    where = ("--model", "llama", "--size", "small", "--batch", "8", "-m", "a100", "-n", "4")
    done = CliRunner().invoke(main, ["export", plan, *where, "--to", "onnx", "--out", str(file), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["written"] == [str(file)] and said["ranks"] == 4 and said["differences"] == []
    graph = build("llama", 8, 4, preset="small")
    assert read_onnx_plan(file, graph) == taskflow.choose(plan, graph, taskflow.load_machine("a100", 4))[0]
    refused = CliRunner().invoke(main, ["export", plan, *where, "--to", "onnx", "--out", str(tmp_path / "plan.json")])
    assert refused.exit_code != 0 and "plan.onnx" in refused.output


def test_a_plan_of_too_many_pieces_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """Llama 405B on 16,384 devices, in 64 micro-batches: more than protobuf writes."""
    words = ["export", "t8 p16 d128 mb1 v8 zero1", "--model", "llama", "--size", "405B", "--batch", "8192", "-m", "h100"]
    done = CliRunner().invoke(main, [*words, "-n", "16384", "--to", "onnx", "--out", str(tmp_path / "plan.onnx")])
    assert done.exit_code == 2 and not any(tmp_path.iterdir())
    assert re.search(r"onnx: the plan has 157,\d{3},\d{3} pieces of operators, .* at most 67,108,864; write the plan", done.output)


def test_layouts_of_layers_that_are_alike_are_their_own() -> None:
    """Two stages of like layers: devices and stages differ, and names always."""
    graph = decoder()
    strategy = taskflow.choose("p2 d2 mb1", graph, taskflow.load_machine("a100", 4))[0]
    made = {node.name: node for node in export_onnx(graph, strategy).graph.node}
    for node in graph:
        (theirs,) = made[node.name].device_configurations
        names = dict.fromkeys([*(t.name for t in node.inputs), *(p.name for p in node.parameters), *(t.name for t in node.outputs)])
        assert [spec.tensor_name for spec in theirs.sharding_spec] == [*names]
        assert strategy.pipeline is not None and theirs.pipeline_stage == strategy.pipeline.stages[node.name]


def test_specs_say_who_has_what() -> None:
    graph = taskflow.OperatorGraph()
    taskflow.linear(taskflow.input(graph, (8, 6), name="x"), 4, name="fc")
    configs = {"x": OpConfig((1, 1), (3,)), "fc": OpConfig((2, 2, 1), (3, 1, 2, 0))}
    made = export_onnx(graph, Strategy(4, configs))
    specs = {s.tensor_name: s for s in made.graph.node[1].device_configurations[0].sharding_spec}
    groups = {e.key: list(e.value) for e in specs["x"].index_to_device_group_map}
    assert [groups[d] for d in specs["x"].device] == [[3, 1], [2, 0]], "halves of x, each at two devices"
    assert [(d.axis, d.simple_sharding[0].num_shards) for d in specs["fc"].sharded_dim] == [(0, 2), (1, 2)]
    assert list(specs["fc"].device) == [3, 1, 2, 0]


def test_a_changed_spec_or_another_graph_is_refused() -> None:
    graph = build("mlp", 8, 2, preset="small")
    strategy = map_graph(DataParallel(), graph, taskflow.host(2))
    made = export_onnx(graph, strategy)
    with pytest.raises(ValueError, match="the plan is of another graph"):
        read_onnx_plan(made, build("mlp", 16, 2, preset="small"))
    next(n for n in made.graph.node if n.input).device_configurations[0].sharding_spec[0].device[0] = 1
    with pytest.raises(ValueError, match="its sharding specs are not those of a configuration"):
        read_onnx_plan(made, graph)
