"""Strategy files: what is written is read back, and whatever does not fit is named together with the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from language_model import CONFIG, feeds, model, random_strategy

import taskflow
from taskflow.mapper import (
    BLOCK,
    MessageSync,
    OpConfig,
    ShardedSync,
    Strategy,
    Sync,
    SyncAlgorithm,
    UpdatePlacement,
    described_by_blocks,
    load,
    parse_sync,
    save,
)


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int, tmp_path: Path) -> None:
    random, graph = Random(seed), model()
    strategy = random_strategy(graph, random.randint(1, 5), random)
    save(strategy, graph, "host", tmp_path / "plan.json")
    read = load(tmp_path / "plan.json", model(), strategy.processors)
    assert read == strategy
    assert read.describe(graph) == strategy.describe(graph)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]  # no temporary file is left


def test_a_file_says_what_is_kept_as_shares_and_nothing_new_without(tmp_path: Path) -> None:
    graph = model()
    sharded = ShardedSync(zero=3, shard_group=2, prefetch=0)
    strategy = replace(random_strategy(graph, 4, Random(2)), syncs={"softmax": sharded, "embedding": MessageSync()})
    save(strategy, graph, "host", tmp_path / "plan.json")
    assert load(tmp_path / "plan.json", graph, 4) == strategy and strategy.ordered
    entries = json.loads((tmp_path / "plan.json").read_text())["syncs"]
    assert set(entries["embedding"]) == {"travel", "place", "chunks"}
    assert set(entries["softmax"]) == {"travel", "place", "chunks", "zero", "shard_group", "prefetch"}
    blocks = replace(strategy, syncs={"softmax": replace(sharded, prefetch=BLOCK), "embedding": replace(sharded, zero=2)})
    save(blocks, graph, "host", tmp_path / "plan.json")
    assert load(tmp_path / "plan.json", graph, 4) == blocks
    entries = json.loads((tmp_path / "plan.json").read_text())["syncs"]
    assert entries["softmax"]["prefetch"] == "block" and "prefetch" not in entries["embedding"]
    silent = write(tmp_path, lambda content: content["syncs"].update(
        {"softmax": {"travel": "collective", "place": "spread", "zero": 3}}
    ))
    assert load(silent, graph, 2).sync("softmax").prefetch == 1  # what files without it have always meant
    path = write(tmp_path, lambda content: content["syncs"].update(
        {"softmax": {"travel": "ring", "place": "spread", "zero": 2}}
    ))
    with pytest.raises(ValueError, match=r"plan.json: Sync: zero 2 goes with algorithm 'collective', .* got 'ring', 'spread'"):
        load(path, graph, 2)


def test_a_file_trains_like_the_strategy_it_was_made_of(tmp_path: Path) -> None:
    graph = model()
    strategy = random_strategy(graph, 4, Random(1))
    save(strategy, graph, "host", tmp_path / "plan.json")
    other = model()
    read, mapper = taskflow.choose(str(tmp_path / "plan.json"), other, taskflow.host(4))
    runs = [
        taskflow.Executor(graph, strategy, taskflow.SGD(0.5), seed=3),
        taskflow.Executor(other, read, taskflow.SGD(0.5), seed=3, mapper=mapper),
    ]
    for step in range(3):
        assert runs[0].train(feeds(step)) == runs[1].train(feeds(step))


def test_what_is_not_in_a_file_has_its_default(tmp_path: Path) -> None:
    graph = model()
    path = write(tmp_path, lambda content: content.pop("syncs"))
    assert load(path, graph, 2).sync("softmax") == MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.SHARDED)
    path = write(tmp_path, lambda content: content["syncs"].update({"softmax": {"travel": "ring", "place": "every"}}))
    assert load(path, graph, 2).sync("softmax") == MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED, 0)


def write(folder: Path, change: Callable[[dict], object] = lambda content: None, processors: int = 2) -> Path:
    """A data-parallel strategy file for ``model()``, changed."""
    graph, path = model(), folder / "plan.json"
    strategy, _ = taskflow.choose("data", graph, taskflow.host(processors))
    save(strategy, graph, f"host-{processors}", path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def operator(name: str, **entries: object) -> Callable[[dict], object]:
    """Change entries of one operator."""
    return lambda content: content["operators"][name].update(entries)


def test_the_unchanged_file_is_fine(tmp_path: Path) -> None:
    assert load(write(tmp_path), model(), 2).processors == 2


def rename(content: dict) -> None:
    content["graph"] = "another"
    content["operators"]["lstm9"] = content["operators"].pop("loss")


def other_dims(content: dict) -> None:
    content["graph"] = "another"
    content["operators"]["softmax"]["dims"] = ["n", "c"]


@pytest.mark.parametrize("change,message", [
    (lambda c: c.update(format="chainer"), "not a strategy file .its format must be 'taskflow-strategy'."),
    (lambda c: c.update(version=2), "version 2 of the format; this taskflow reads 1"),
    (lambda c: c.update(processors=16, machine="p100"), "made for 16 processors .p100., but this run has 2; start it with -n 16"),
    (lambda c: c.pop("operators"), "plan.json: 'operators' is missing"),
    (lambda c: c["operators"].update({"loss": [1, 2]}), r"operators.loss: must be an object \{...\}, got \[1, 2\]"),
    (lambda c: c.update(syncs=[1]), r"syncs: must be an object \{...\}, got \[1\]"),
    (lambda c: c["syncs"]["softmax"].update(travel="pigeon"),
     "syncs.softmax.travel: must be 'ring', 'tree', 'owner' or 'collective', got 'pigeon'"),
    (lambda c: c["syncs"]["softmax"].update(chunks=-1), "syncs.softmax.chunks: must be an integer from 0 to 2..62, got -1"),
    (lambda c: c["syncs"]["softmax"].update(chunks="few"), "syncs.softmax.chunks: must be an integer from 0 to 2..62, got 'few'"),
    (lambda c: c["syncs"]["softmax"].pop("place"), "syncs.softmax: 'place' is missing"),
    (lambda c: c["operators"]["loss"].pop("degrees"), "operators.loss: 'degrees' is missing"),
    (lambda c: c["syncs"].update(softmx=c["syncs"].pop("softmax")),
     "syncs of layers that have no weights: softmx; layers with weights are embed"),
    (lambda c: c["operators"].pop("loss"), "no configuration for: loss"),
    (rename, r"made for model RNNLM, which differs from RNNLM: operator loss is not in the file; operator lstm9 is not in this"),
    (other_dims, r"operator softmax has dimensions \['n', 'a1', 'c', 'k'\], in the file \['n', 'c'\]"),
    (operator("loss", degrees=3), "operators.loss.degrees: must be a list, got 3"),
    (operator("softmax", degrees=[7, 1, 1, 1], processors=[0] * 7), "operator softmax: degree of n must be 1 to 6, got 7"),
    (operator("softmax", degrees=[0, 1, 1, 1], processors=[]),
     r"operators.softmax.degrees\[0\]: must be an integer from 1 to 2..62, got 0"),
    (operator("softmax", degrees=["2", 1, 1, 1]), r"operators.softmax.degrees\[0\]: must be an integer from 1 to 2..62, got '2'"),
    (operator("softmax", degrees=[2, 1]), r"softmax: needs one degree for each of \['n', 'a1', 'c', 'k'\], got \(2, 1\)"),
    (operator("softmax", processors=[0, 2]), "operator softmax: processor 2 does not exist; there are 0 to 1"),
    (operator("softmax", processors=[0, -1]), r"operators.softmax.processors\[1\]: must be an integer from 0 to 2..62, got -1"),
    (operator("softmax", processors=[0, "1"]), r"operators.softmax.processors\[1\]: must be an integer from 0 to 2..62, got '1'"),
    (operator("softmax", processors=[0, 1, 0]), "operator softmax: 2 pieces need as many processors, got 3"),
    (operator("softmax", copies=0), "operators.softmax.copies: must be an integer from 1 to 2..62, got 0"),
    (operator("softmax", copies=2), "operator softmax: 2 x 2 copies need as many processors, got 2"),
    (operator("softmax", copies=2, processors=[0, 0, 1, 1]), "operator softmax: copies of a piece run on different processors"),
    (operator("softmax", weights=[[1, 2]]), "operator softmax: needs one list of weights a dimension"),
    (operator("softmax", weights=[[1, 2, 3], [], [], []]), "operator softmax: n needs 2 weights"),
    (operator("softmax", weights=[[1, -2], [], [], []]),
     r"operators.softmax.weights\[0\]\[1\]: must be a number from 0 to .*, got -2"),
    (operator("softmax", weights=[[0, 0], [], [], []]), "operator softmax: n needs 2 weights, .* not all 0"),
    (operator("softmax", weights=[[1, 1000], [], [], []]), "operator softmax: weights .* leave a piece empty; use a smaller"),
    (operator("softmax", processors=[0, True]), r"operators.softmax.processors\[1\]: must be an integer .*, got true"),
    (operator("softmax", degrees=[2.0, 1, 1, 1]), r"operators.softmax.degrees\[0\]: must be an integer .*, got 2.0"),
    (operator("softmax", wieghts=[[1, 2], [], [], []]), r"operators.softmax: unknown key 'wieghts'; did you mean 'weights'\?"),
    (operator("softmax", dims=["n", "c", "a1", "k"]), "operator softmax has dimensions .*, in the file"),
    (lambda c: c.update(sync={}), r"plan.json: unknown key 'sync'; did you mean 'syncs'\?"),
    (lambda c: c.update(made_from={"set": {"hidden": 3}}), "made_from.set.hidden: must be a text, got 3"),
    (lambda c: c.update(search={"history": [{"proposal": 1}]}), r"search.history\[0\]: 'elapsed_seconds' is missing"),
    (operator("softmax", weights=[["much", 1], [], [], []]),
     r"operators.softmax.weights\[0\]\[0\]: must be a number from 0 .*, got 'much'"),
    (operator("softmax", weights=[[float("nan"), 1], [], [], []]), r"softmax.weights\[0\]\[0\]: must be a finite number, got nan"),
    (operator("softmax", weights=[[float("inf"), 1], [], [], []]), r"softmax.weights\[0\]\[0\]: must be a finite number, got inf"),
])
def test_what_does_not_fit_is_named(change: Callable[[dict], object], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        load(path, model(), 2)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_differences_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"; and [0-9]+ more; give the model that it was made for, or search again$"):
        load(write(tmp_path), model(config=replace(CONFIG, steps_per_operator=1)), 2)


def test_other_sizes_are_fine_while_the_degrees_fit(tmp_path: Path) -> None:
    larger = replace(CONFIG, batch=12, vocabulary=99, hidden=32)
    path = write(tmp_path)
    assert load(path, model(config=larger), 2)["softmax"].degrees == (2, 1, 1, 1)
    with pytest.raises(ValueError, match=r"degree of n must be 1 to 1, got 2"):
        load(path, model(config=replace(CONFIG, batch=1)), 2)


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"plan"', "null", "\x00\x01"])
def test_what_is_no_strategy_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not JSON|not a strategy file") as caught:
        load(path, model(), 2)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"plan.json: not JSON"):
        load(tmp_path / "plan.json", model(), 2)


def test_nested_beyond_reading(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"plan.json: not JSON that can be read"):
        load(tmp_path / "plan.json", model(), 2)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(ValueError, match=r"strategy file .*plan.json: is a folder"):
        load(tmp_path / "plan.json", model(), 2)


def test_a_missing_file_or_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"strategy file .*nothing.json does not exist"):
        load(tmp_path / "nothing.json", model(), 2)
    graph = model()
    strategy, _ = taskflow.choose("data", graph, taskflow.host(2))
    with pytest.raises(FileNotFoundError, match=r"cannot write strategy file .*plan.json: there is no folder"):
        save(strategy, graph, "host", tmp_path / "nowhere" / "plan.json")


def test_weighted_pieces_have_their_proportions() -> None:
    node = model().node("softmax")
    config = OpConfig((2, 1, 1, 1), (0, 1), ((1.0, 2.0), (), (), ()))
    config.verify(node, 2)
    assert [rect.shape[0] for rect in config.partition(node).rects()] == [2, 4]
    even = OpConfig((4, 1, 1, 1), (0, 1, 0, 1))
    assert [rect.shape[0] for rect in even.partition(node).rects()] == [2, 2, 1, 1]


def test_a_strategy_prints_itself() -> None:
    graph = model()
    strategy, _ = taskflow.choose("data", graph, taskflow.host(4))
    assert "softmax: n/4 @ 0-3" in strategy.describe(graph)
    whole = OpConfig((1, 1, 1, 1), (2,))
    assert whole.describe(graph.node("softmax")) == "whole @ 2"
    mixed = OpConfig((2, 1, 2, 1), (0, 1, 3, 1))
    assert mixed.describe(graph.node("softmax")) == "n/2 c/2 @ 0-1,3,1"
    assert str(MessageSync()) == "owner/spread"
    assert str(MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED, 3)) == "ring/every/3"


def test_a_strategy_that_does_not_fit_is_refused_by_the_executor() -> None:
    graph = model()
    good, _ = taskflow.choose("data", graph, taskflow.host(2))
    configs = dict(good.configs)
    configs["lstm0"] = OpConfig(configs["lstm0"].degrees, (0, 7))
    with pytest.raises(ValueError, match=r"operator lstm0: processor 7 does not exist"):
        taskflow.Executor(graph, Strategy(2, configs), taskflow.SGD(0.1))
    del configs["lstm0"]
    with pytest.raises(ValueError, match=r"no configuration for: lstm0"):
        taskflow.Executor(graph, Strategy(2, configs), taskflow.SGD(0.1))
    assert np.isfinite(taskflow.Executor(graph, good, taskflow.SGD(0.1)).train(feeds(0)))


def test_equal_operators_of_layers_are_described_in_one_line() -> None:
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (8, 4), name="x")
    for number in range(4):
        x = taskflow.relu(taskflow.linear(x, 4, name=f"h.{number}.up"), name=f"h.{number}.act")
    graph.minimize(taskflow.cross_entropy(x, taskflow.input(graph, (8,), "int64", name="labels"), name="loss"))
    strategy = taskflow.choose("data", graph, taskflow.load_machine("p100", 4))[0]
    other = replace(strategy, configs={**strategy.configs, "h.1.up": replace(strategy["h.1.up"], processors=(3, 2, 1, 0))})
    assert described_by_blocks(graph, other).splitlines() == [
        "x: n/4 @ 0-3", "h.0,2-3.up: n/4 @ 0-3", "h.0-3.act: n/4 @ 0-3", "h.1.up: n/4 @ 3,2,1,0", "labels: n/4 @ 0-3",
        "loss: n/4 @ 0-3",
    ]


KINDS = {
    "ring/spread": {"chunks": 3},
    "collective/every": {"bucket": 7, "overlap": False},
    "collective/spread": {"bucket": 7, "overlap": False, "late_gather": True},
    "collective/zero2": {"shard_group": 2, "replicas": 4, "late_gather": True},
    "collective/zero3": {"shard_group": 2, "replicas": 4, "prefetch": 5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_synchronisation_takes_its_own_words(kind: str) -> None:
    words = {name: value for of in KINDS.values() for name, value in of.items()}
    plain = parse_sync(kind, "test")
    for name, value in words.items():
        said = {"algorithm": plain.algorithm, "placement": plain.placement, "zero": max(1, plain.zero), name: value}
        if name in KINDS[kind]:
            made = Sync.of(**said)
            assert getattr(made, name) == value and type(made) is type(plain) and parse_sync(str(made), "test") == made
        elif name == "prefetch":  # files of every kind may have it
            assert Sync.of(**said) == plain
        else:
            with pytest.raises(ValueError, match=f"Sync: {name} .*goes with"):
                Sync.of(**said)
    assert set(KINDS[kind]) <= {field.name for field in fields(plain)}
