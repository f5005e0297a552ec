"""Predicting and evaluating give the same numbers under every strategy, with the weights of training and nothing of its noise."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from inference_model import data, network
from language_model import CONFIG, feeds, model, random_strategy, undivided

import taskflow
from taskflow.models import build
from taskflow.operators.operator import Spec
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.weights.array_layout import ArrayLayout, HeldElements, Memory
from taskflow.tasks.task import Compute


def trained(graph, strategy, steps=4, **options) -> Executor:
    run = Executor(graph, strategy, SGD(0.1, momentum=0.9), seed=3, **options)
    for step in range(steps):
        run.train(data(step, graph.nodes[0].outputs[0].shape[0]))
    return run


def by_hand(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The scores of `network`, in numpy."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    x = np.einsum("nchwij,ocij->nohw", windows, weights["conv1.weight"]) + weights["conv1.bias"][:, None, None]
    scale = weights["bn1.weight"] / np.sqrt(weights["bn1.running_var"] + 1e-5)
    x = (x - weights["bn1.running_mean"][:, None, None]) * scale[:, None, None] + weights["bn1.bias"][:, None, None]
    return np.maximum(x, 0).reshape(len(images), -1) @ weights["fc.weight"].T + weights["fc.bias"]


@pytest.mark.parametrize("seed", range(20))
def test_predictions_under_random_strategies(seed):
    random = Random(seed)
    graph = network()
    run = trained(graph, random_strategy(graph, random.randint(1, 6), random))
    images = data(100)["images"]
    wanted = by_hand(run.weights(), images)
    np.testing.assert_allclose(run.predict({"images": images}), wanted, rtol=1e-10)
    # Another batch, another strategy, the same weights.
    other = network(batch=random.choice((1, 4, 6)))
    user = Executor(other, random_strategy(other, random.randint(1, 6), random), weights=run)
    np.testing.assert_allclose(user.predict({"images": images}), wanted, rtol=1e-10)
    run.train(data(50))
    changed = by_hand(run.weights(), images)
    assert np.abs(changed - wanted).max() > 1e-3
    np.testing.assert_allclose(user.predict({"images": images}), changed, rtol=1e-10)
    for name, value in run.weights().items():
        np.testing.assert_array_equal(user.weights()[name], value, err_msg=name)


@pytest.mark.parametrize("name", ["LeNet", "RNNTC", "NMT", "ResNet-101"])
def test_models_predict_the_same_under_random_strategies(name):
    random = Random(name)
    graph = build(name, preset="small", dtype="float64")
    generator = np.random.default_rng(1)
    fed = {}
    for node in graph:
        if node.operator.kind == "input":
            (spec,) = (tensor.spec for tensor in node.outputs)
            whole = spec.dtype.kind == "i"
            fed[node.name] = generator.integers(0, 2, spec.shape) if whole else generator.normal(size=spec.shape)
    whole = Executor(graph, undivided(graph), seed=1)
    wanted = whole.predict(fed)
    several = isinstance(wanted, dict)  # NMT answers in chunks of steps
    assert several == (name == "NMT")
    for _ in range(2):
        run = Executor(graph, random_strategy(graph, random.randint(2, 5), random), seed=1)
        found = run.predict(fed)
        for key in wanted if several else [None]:
            a, b = (found[key], wanted[key]) if several else (found, wanted)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        assert run.evaluate(fed) == pytest.approx(whole.evaluate(fed), rel=1e-9)


def test_only_what_is_needed_runs():
    graph = network()
    run = trained(graph, undivided(graph), steps=1)
    run.predict({"images": data(0)["images"]})
    work = [task.work for task in run.program("predict", [graph.node("fc").outputs[0]]).graph]
    kinds = {w.node.operator.kind for w in work if isinstance(w, Compute)}
    assert {"conv2d", "normalize", "linear"} <= kinds
    assert not kinds & {"moments", "running_statistics", "cross_entropy"}
    labels = [w for w in work if isinstance(w, Compute) and w.node.name == "labels"]
    assert not labels


def test_evaluation_has_nothing_of_what_it_does_not_read():
    graph = network(samples=3)
    run = trained(graph, random_strategy(graph, 3, Random(5)))
    images = data(9)["images"]
    first = run.predict({"images": images})
    program = run.program("predict", [graph.node("fc").outputs[0]])
    program.storage.arena.fill(0xFF)  # not a number, in every type
    unread = [b for b in program.graph.buffers if b.region == "bn1.moments"]
    assert unread and not any(b.nbytes for b in unread)
    np.testing.assert_array_equal(run.predict({"images": images}), first)


def test_outputs_by_name_and_tensor():
    graph = network()
    run = trained(graph, random_strategy(graph, 3, Random(1)))
    images = data(9)["images"]
    scores = run.predict({"images": images})
    tensor = graph.node("conv1").outputs[0]
    both = run.predict({"images": images, "labels": data(9)["labels"]}, ["fc", tensor])
    assert list(both) == ["fc", "conv1"]
    np.testing.assert_array_equal(both["fc"], scores)
    assert both["conv1"].shape == (6, 4, 4, 3)
    np.testing.assert_array_equal(run.predict({"images": images}, "conv1"), both["conv1"])
    np.testing.assert_array_equal(run.predict({"images": images}, ["fc"])["fc"], scores)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 20])
def test_any_number_of_samples(count):
    graph = network()
    run = trained(graph, random_strategy(graph, 3, Random(2)))
    images = data(11, count)["images"]
    found = run.predict({"images": images})
    assert found.shape == (count, 3)
    np.testing.assert_allclose(found, by_hand(run.weights(), images), rtol=1e-10)


def test_prediction_neither_changes_training_nor_is_noisy():
    graph = network()
    one, other = (trained(graph, undivided(graph)) for _ in range(2))
    images = data(11)["images"]
    before = {k: v.tobytes() for k, v in one.weights().items()}
    first = one.predict({"images": images})
    np.testing.assert_array_equal(one.predict({"images": images}), first)
    one.evaluate(data(12))
    assert before == {k: v.tobytes() for k, v in one.weights().items()}
    assert one.train(data(13)) == other.train(data(13))


def test_a_carried_state_goes_on_from_prediction_to_prediction():
    graph = model()
    run = Executor(graph, random_strategy(graph, 3, Random(1)), SGD(0.5), seed=1)
    run.train(feeds(0))
    tokens = {"tokens": feeds(1)["tokens"]}
    names = ["softmax", "softmax.1"]
    first, second = run.predict(tokens), run.predict(tokens)
    assert list(first) == names
    assert all(np.abs(first[k] - second[k]).max() > 1e-9 for k in names)
    run.reset_state("predict")
    again = run.predict(tokens)
    for name in names:
        np.testing.assert_array_equal(first[name], again[name])
    with pytest.raises(ValueError, match=r"takes 6 samples at a time, got 3, and it carries lstm\.h0 from batch to batch"):
        run.predict({"tokens": tokens["tokens"][:3]})


def test_equal_placement_is_the_same_memory_and_others_are_copies():
    graph = network()
    run = trained(graph, taskflow.choose("data", graph, taskflow.host(4))[0])
    bigger = network(batch=8)
    same = Executor(bigger, taskflow.choose("data", bigger, taskflow.host(4))[0], weights=run)
    assert same._shared.copied_bytes == 0
    for name, array in same.kept.arrays.items():
        assert array is run.kept.arrays[name]
    alone = Executor(bigger, undivided(bigger), weights=run)
    assert 0 <= alone._shared.copied_bytes < sum(v.nbytes for v in run.weights().values())
    cut = Executor(bigger, random_strategy(bigger, 5, Random(4)), weights=run)
    assert cut._shared.copied_bytes > 0
    fed = data(3, 8)
    assert cut.evaluate(fed) == pytest.approx(same.evaluate(fed), rel=1e-12)
    third = Executor(graph, undivided(graph), weights=cut)  # of one that itself has copies
    for step in (4, 6):  # what was copied once is copied again
        run.train(data(step))
        np.testing.assert_allclose(third.predict(data(5)), run.predict(data(5)), rtol=1e-12)


def test_of_several_copies_that_of_the_lowest_processor_is_taken():
    rect = Rect((0,), (4,))
    held = [HeldElements(rect, Memory("w", (4,), np.dtype("float32"), p), 0, *span) for p in (2, 0, 1) for span in ((0, 3), (3, 4))]
    found = ArrayLayout("w", Spec((4,), np.dtype("float32")), tuple(held)).distinct()
    assert [(one.memory.processor, one.first, one.last) for one in found] == [(0, 0, 3), (0, 3, 4)]


def test_evaluation_gives_outputs_in_the_same_pass():
    graph = network()
    run = trained(graph, random_strategy(graph, 3, Random(2)))
    fed = data(21)
    loss, values = run.evaluate_with(fed, ["fc"])
    scores = values["fc"]
    np.testing.assert_allclose(scores, run.predict({"images": fed["images"]}), rtol=1e-12)
    picked = scores[np.arange(6), fed["labels"]]
    assert loss == pytest.approx(np.mean(np.log(np.exp(scores).sum(1)) - picked), rel=1e-10)
    assert loss == pytest.approx(run.evaluate(fed), rel=1e-12)


def test_a_type_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"OperatorGraph: dtype must be a type of floats \(float32, bfloat16.*got 'float8'"):
        taskflow.OperatorGraph("float8")


def test_errors_say_what_is_wrong():
    graph = network()
    run = trained(graph, undivided(graph), steps=1)
    images = data(0)["images"]
    for wrong, message in (
        ({"image": images}, "network has no input 'image'; there are images, labels"),
        ({}, r"fc needs the input images \(float64\[6, 2, 6, 5\]\), got none"),
        ({"images": images[:, :1]}, r"images must be an array float64\[samples, 2, 6, 5\], got float64\[6, 1, 6, 5\]"),
        ({"images": images.astype("float32")}, r"got float32\[6, 2, 6, 5\]; convert it before"),
        ({"images": images.tolist()}, "got list; convert it before"),
        ({"images": images[:0]}, "not 0"),
    ):
        with pytest.raises(ValueError, match=message):
            run.predict(wrong)
    with pytest.raises(ValueError, match="network has no output 'scores'; there are images, labels, conv1"):
        run.predict({"images": images}, "scores")
    with pytest.raises(ValueError, match="fc belongs to another graph"):
        run.predict({"images": images}, network().node("fc").outputs[0])
    with pytest.raises(ValueError, match="has no row for each; give 6"):
        run.predict(data(0, 3), "cross_entropy")
    with pytest.raises(ValueError, match="uses the weights of another; set them there"):
        Executor(graph, undivided(graph), weights=run).set_parameters({"fc.bias": np.zeros(3)})
    with pytest.raises(ValueError, match="has no update rule; train the other"):
        Executor(graph, undivided(graph), SGD(0.1), weights=run)
    other = taskflow.OperatorGraph("float64", "other")
    taskflow.linear(taskflow.input(other, (2, 5), name="x"), 2, name="fc")
    wrong = r"cannot use the weights of this other network: fc\.weight must be float64\[2, 5\], but there it is float64\[3, 48\]"
    with pytest.raises(ValueError, match=wrong):
        Executor(other, undivided(other), weights=run)
    with pytest.raises(ValueError, match=r"minimises no loss; call graph\.minimize, or predict"):
        Executor(other, undivided(other)).evaluate({})


def test_a_graph_without_a_loss_predicts():
    graph = taskflow.OperatorGraph("float64", "plain")
    x = taskflow.input(graph, (4, 3), name="x")
    taskflow.relu(taskflow.linear(x, 2, name="fc"), name="answer")
    run = Executor(graph, random_strategy(graph, 3, Random(0)), seed=1)
    values = np.random.default_rng(0).normal(size=(9, 3))
    weights = run.weights()
    wanted = np.maximum(values @ weights["fc.weight"].T + weights["fc.bias"], 0)
    np.testing.assert_allclose(run.predict({"x": values}), wanted, rtol=1e-12)


def test_evaluation_with_another_number_of_steps():
    """The names of weights do not depend on how a recurrent network's steps are cut."""
    from dataclasses import replace

    graph = model()
    run = Executor(graph, undivided(graph), SGD(0.5), seed=1)
    run.train(feeds(0))
    other = model(config=replace(CONFIG, batch=2, steps=3, steps_per_operator=3))
    user = Executor(other, random_strategy(other, 3, Random(3)), weights=run)
    tokens = feeds(7)["tokens"]
    found = user.predict({"tokens": tokens[:2, :3]})
    both = run.predict({"tokens": tokens})
    np.testing.assert_allclose(found, np.concatenate([both["softmax"], both["softmax.1"]], 1)[:2, :3], rtol=1e-10)
