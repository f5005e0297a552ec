"""The same seed gives the same training run under every strategy."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, feeds, model, random_strategy, undivided

import taskflow
from taskflow.machine import host
from taskflow.mapper import MAPPERS, OpConfig, Strategy, choose
from taskflow.rules import SGD, Adam, UpdateRule
from taskflow.runtime.executor import Executor, LossError


def losses(strategy, graph, steps=5, rule: UpdateRule | None = None, config=CONFIG, clip: float | None = 1.0):
    run = Executor(graph, strategy, rule or SGD(0.5, momentum=0.9), seed=3, clip_norm=clip)
    return np.array([run.train(feeds(step, config)) for step in range(steps)]), run


@pytest.fixture(scope="module")
def reference():
    return {config: losses(undivided(model(config=config)), model(config=config), config=config)[0]
            for config in (CONFIG, ONE_STEP)}


@pytest.mark.parametrize("block", fast_among(range(10), range(1)))
def test_two_hundred_random_strategies(block, reference):
    for seed in range(20 * block, 20 * block + 20):
        random = Random(seed)
        config = CONFIG if seed % 2 else ONE_STEP
        graph = model(config=config)
        strategy = random_strategy(graph, random.randint(2, 6), random)
        found, _ = losses(strategy, graph, config=config)
        np.testing.assert_allclose(found, reference[config], rtol=1e-10, err_msg=f"seed {seed}")


@cache
def of_one_processor():
    return losses(undivided(model("float64")), model("float64"), steps=20)[0]


@pytest.mark.parametrize("mapper", MAPPERS)
@pytest.mark.parametrize(("processors", "dtype", "tolerance"), fast_among(
    [(n, *kind) for n in (1, 2, 3, 5, 8, 16) for kind in (("float64", 1e-10), ("float32", 1e-4))],
    [*((n, "float64", 1e-10) for n in (1, 3, 8, 16)), (5, "float32", 1e-4)],
))
def test_every_mapper_and_number_of_processors(mapper, processors, dtype, tolerance):
    graph = model(dtype)
    strategy, _ = choose(mapper, graph, host(processors), seed=processors)
    found, _ = losses(strategy, graph, steps=20)
    np.testing.assert_allclose(found, of_one_processor(), rtol=tolerance)


def test_a_rerun_is_bitwise_equal():
    for seed in range(5):
        runs = []
        for _ in range(2):
            graph = model("float32")
            found, run = losses(random_strategy(graph, 4, Random(seed)), graph, steps=6, rule=Adam(0.01))
            runs.append((found.tobytes(), {k: v.tobytes() for k, v in run.parameters().items()}))
        assert runs[0] == runs[1]


def test_parameters_agree_after_training():
    graph = model()
    _, one = losses(undivided(graph), graph, rule=Adam(0.01))
    for seed in range(5):
        other = model()
        _, many = losses(random_strategy(other, 4, Random(seed)), other, rule=Adam(0.01))
        for name, value in one.parameters().items():
            np.testing.assert_allclose(many.parameters()[name], value, rtol=1e-8, atol=1e-11)


def test_set_parameters_under_another_strategy():
    graph = model()
    _, one = losses(undivided(graph), graph)
    other = model()
    many = Executor(other, random_strategy(other, 5, Random(1)), SGD(0.1))
    many.set_parameters(one.parameters())
    for name, value in one.parameters().items():
        np.testing.assert_array_equal(many.parameters()[name], value)
    with pytest.raises(ValueError, match="no parameter 'nonsense'"):
        many.set_parameters({"nonsense": np.zeros(1)})
    with pytest.raises(ValueError, match="shape must be"):
        many.set_parameters({other.parameters[0].name: np.zeros(1)})


def test_evaluation_changes_nothing_and_agrees():
    graph = model()
    one = Executor(graph, undivided(graph), SGD(0.1), seed=3)
    other = model()
    many = Executor(other, random_strategy(other, 4, Random(2)), SGD(0.1), seed=3)
    before = one.parameters()
    for step in range(3):  # the carried state makes each batch's loss depend on the ones before
        assert one.evaluate(feeds(step)) == pytest.approx(many.evaluate(feeds(step)), rel=1e-12)
    for name, value in before.items():
        np.testing.assert_array_equal(one.parameters()[name], value)
    first = one.train(feeds(0))
    assert first == pytest.approx(many.train(feeds(0)), rel=1e-12)


def test_a_loss_that_is_no_number_is_an_error():
    graph = model()
    run = Executor(graph, undivided(graph), SGD(0.1), seed=3)
    name = graph.parameters[-1].name
    run.set_parameters({name: np.full_like(run.parameters()[name], np.nan)})
    with pytest.raises(LossError, match="the loss became nan at step 1; lower the learning rate"):
        run.train(feeds(0))


def test_wrong_feeds_are_named():
    graph = model()
    run = Executor(graph, undivided(graph), SGD(0.1))
    with pytest.raises(ValueError, match="targets"):
        run.train({"tokens": feeds(0)["tokens"]})
    with pytest.raises(ValueError, match="tokens"):
        run.train({"tokens": np.zeros((2, 2), np.int64), "targets": feeds(0)["targets"]})


@pytest.mark.parametrize(("pieces", "processors"), [(1, 1), (2, 2)])
def test_what_of_a_kernel_no_task_uses_keeps_its_value(pieces: int, processors: int) -> None:
    """Windows that reach beyond a small image: the kernel's middle row meets padding only, its others one row of the image."""
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (2, 3, 2, 1), name="x")
    conv = taskflow.conv2d(x, 2, 3, stride=3, padding=((2, 2), (1, 1)), name="conv")
    label = taskflow.input(graph, (2,), "int64", name="label")
    graph.minimize(taskflow.cross_entropy(taskflow.flatten(conv, 1), label, name="loss"))
    configs = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    cut = {"conv": OpConfig((1, 1, pieces, 1, 1), tuple(range(pieces)))}
    run = taskflow.Executor(graph, Strategy(processors, configs | cut), taskflow.SGD(lr=0.5), seed=4)
    start = run.weights()["conv.weight"]
    assert (start != 0).all()
    run.train({"x": np.ones((2, 3, 2, 1), "float32"), "label": np.zeros(2, "int64")})
    moved = run.weights()["conv.weight"] != start
    assert moved[:, :, [0, 2], 1].all() and moved.sum() == 2 * 3 * 2
    other = np.arange(start.size, dtype="float32").reshape(start.shape)
    run.set_parameters({"conv.weight": other})
    assert (run.weights()["conv.weight"] == other).all()
    unlike = taskflow.Executor(graph, Strategy(processors, configs), taskflow.SGD(lr=0.5), seed=4)
    assert (unlike.weights()["conv.weight"] == start).all()
