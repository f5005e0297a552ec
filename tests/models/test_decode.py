"""Decoding with the trained weights: greedy, beam search, against the training graph itself and exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided

from taskflow.mapper import Strategy, alike
from taskflow.models.decoding.beam_search import Speaker, Translation, beam_search, greedy, length_penalty, log_softmax
from taskflow.models.decoding.translators import NMTTranslator, TransformerTranslator, Translator
from taskflow.models.nmt import NMTConfig, nmt
from taskflow.models.transformer import TransformerConfig, transformer, transformer_decoder
from taskflow.regions import Rect
from taskflow.rules import Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.transport.local import LocalTransport

PAD, BEGIN, END, WORDS = 0, 1, 2, 6  # of the vocabulary, three say something
NETWORKS: dict[str, tuple[Any, Any, type[Translator]]] = {
    "NMT": (nmt, NMTConfig(4, 5, WORDS, 8, steps_per_operator=2, padding=PAD), NMTTranslator),
    "Transformer": (
        transformer, TransformerConfig(4, 5, WORDS, 8, 12, 2, 2, dropout=0.0, padding=PAD), TransformerTranslator
    ),
}


def sentences(seed: int, config: Any) -> dict[str, np.ndarray]:
    """A batch whose translation is the source backwards; three words or fewer."""
    random = Random(seed)
    feeds = {name: np.full((config.batch, config.steps), fill) for name, fill in
             (("source", PAD), ("target", PAD), ("labels", -100))}
    for row in range(config.batch):
        words = [random.randint(3, WORDS - 1) for _ in range(random.randint(1, 3))]
        feeds["source"][row, : len(words) + 1] = [*words, END]
        feeds["target"][row, : len(words) + 1] = [BEGIN, *words[::-1]]
        feeds["labels"][row, : len(words) + 1] = [*words[::-1], END]
    return feeds


@pytest.fixture(scope="module", params=NETWORKS)
def trained(request: pytest.FixtureRequest) -> tuple[str, Executor]:
    """A network with a little training: it knows something, and is sure of nothing."""
    build, config, _ = NETWORKS[request.param]
    graph = build(config, "float64")
    run = Executor(graph, undivided(graph), Adam(0.02), seed=3)
    for step in range(30):
        run.train(sentences(step, config))
    return request.param, run


def translator(trained: tuple[str, Executor], beams: int, seed: int = 0) -> Translator:
    """Under a random strategy; each seed has another one."""
    name, run = trained
    _, config, kind = NETWORKS[name]
    return kind(config, beams, lambda graph: random_strategy(graph, 3, Random(seed)), run, begin=BEGIN, end=END)


def teacher_forced(trained: tuple[str, Executor], source: np.ndarray, said: list[list[int]]) -> np.ndarray:
    """Log probabilities (batch, steps, vocabulary) that the training graph itself gives when fed with ``said``."""
    name, run = trained
    build, config, _ = NETWORKS[name]
    graph = build(config, "float64")
    scores = [node.outputs[0] for node in graph if node.name.split(".")[0] == "softmax" and node.operator.kind == "linear"]
    whole = Executor(graph, undivided(graph), fetch=scores)
    whole.set_parameters(run.parameters())
    target = np.full((config.batch, config.steps), PAD)
    for row, words in enumerate(said):
        target[row, : min(config.steps, len(words) + 1)] = [BEGIN, *words][: config.steps]
    whole.evaluate({"source": source, "target": target, "labels": target})
    return log_softmax(np.concatenate([whole.fetched(s, "evaluate") for s in scores], axis=1))


def test_greedy_is_the_teacher_forced_argmax_fed_back(trained: tuple[str, Executor]) -> None:
    config = NETWORKS[trained[0]][1]
    source = sentences(99, config)["source"]
    found = greedy(translator(trained, 1), source)
    logs = teacher_forced(trained, source, [list(t.words) for t in found])
    best = logs.argmax(axis=2)
    assert len({t.words for t in found}) > 1  # sentences are told apart
    for row, translation in enumerate(found):
        length = len(translation.words)
        assert translation.words == tuple(best[row, :length])
        assert translation.words[-1] == END or length == config.steps
        expected = sum(logs[row, t, w] for t, w in enumerate(translation.words))
        assert translation.log_probability == pytest.approx(expected, rel=1e-9)


def test_one_beam_is_greedy(trained: tuple[str, Executor]) -> None:
    source = sentences(7, NETWORKS[trained[0]][1])["source"]
    for alpha in (0.0, 0.6):
        found = beam_search(translator(trained, 1), source, alpha=alpha)
        assert [beams[0].words for beams in found] == [t.words for t in greedy(translator(trained, 1), source)]
        assert all(len(beams) == 1 for beams in found)


def all_sentences(config: Any) -> list[tuple[int, ...]]:
    """Every one that ends, and every one that is cut at the longest length."""
    others = [w for w in range(WORDS) if w != END]
    ended = [(*words, END) for n in range(config.steps) for words in product(others, repeat=n)]
    return ended + list(product(others, repeat=config.steps))


def test_beam_search_finds_what_exhaustive_search_finds(trained: tuple[str, Executor]) -> None:
    name, run = trained
    short = replace(NETWORKS[name][1], steps=3)
    every = all_sentences(short)
    assert len(every) == 1 + 5 + 25 + 125
    source = sentences(5, NETWORKS[name][1])["source"][:, :3]
    scored = exhaustive((name, run), short, source, every)
    for beams in (5, 130):  # one that may prune, one wide enough never to
        speaker = NETWORKS[name][2](short, beams, undivided, run, begin=BEGIN, end=END)
        for row, found in enumerate(beam_search(speaker, source, alpha=0.6)):
            words, score = max(scored[row].items(), key=lambda item: item[1])
            assert found[0].words == words
            assert found[0].score == pytest.approx(score, rel=1e-9)


def exhaustive(
    trained: tuple[str, Executor], config: Any, source: np.ndarray, every: list[tuple[int, ...]]
) -> list[dict[tuple[int, ...], float]]:
    """The score of every sentence for each row of source, by the training graph on whole sentences."""
    name, run = trained
    build = NETWORKS[name][0]
    wide = replace(config, batch=len(every))
    graph = build(wide, "float64")
    scores = [n.outputs[0] for n in graph if n.name.split(".")[0] == "softmax" and n.operator.kind == "linear"]
    whole = Executor(graph, undivided(graph), fetch=scores)
    whole.set_parameters(run.parameters())
    target = np.full((len(every), config.steps), PAD)
    for row, words in enumerate(every):
        target[row] = [BEGIN, *words, *[PAD] * config.steps][: config.steps]
    result = []
    for words in source:
        whole.evaluate({"source": np.tile(words, (len(every), 1)), "target": target, "labels": target})
        logs = log_softmax(np.concatenate([whole.fetched(s, "evaluate") for s in scores], axis=1))
        result.append({
            s: sum(logs[n, t, w] for t, w in enumerate(s)) / length_penalty(len(s), 0.6) for n, s in enumerate(every)
        })
    return result


def test_what_was_said_before_is_forgotten(trained: tuple[str, Executor]) -> None:
    """States of one sentence, such as the keys of its words, must not be seen in the next."""
    config = NETWORKS[trained[0]][1]
    one, other = (sentences(seed, config)["source"] for seed in (21, 22))
    speaker = translator(trained, 2)
    first = beam_search(speaker, one)
    beam_search(speaker, other)
    assert beam_search(speaker, one) == first


def test_a_word_costs_no_more_than_looking_at_those_before() -> None:
    """Of the Transformer: another position adds its keys' and values' elements to a step, and no product with weights."""

    def flops(config: TransformerConfig, beams: int) -> int:
        graph = transformer_decoder(config, beams).graph
        return sum(
            node.operator.flops(node.specs, Rect.of(tuple(dim.size for dim in node.dims))) for node in graph
        )

    config, beams = TransformerConfig(3, 20, 50, 64, 128, 4, 2), 2
    more = flops(replace(config, steps=40), beams) - flops(config, beams)
    elements = 20 * config.batch * beams * config.hidden * config.layers
    # Keys and values said: placed (2 each), added, multiplied (2 each); those heard: multiplied; softmax of the scores.
    assert 0 < more < 16 * elements
    whole = transformer(replace(config, batch=config.batch * beams))
    one = sum(n.operator.flops(n.specs, Rect.of(tuple(d.size for d in n.dims))) for n in whole if n.name.startswith("decoder"))
    assert flops(config, beams) < one / 5  # all positions anew took all of it


def test_strategies_change_nothing(trained: tuple[str, Executor]) -> None:
    source = sentences(11, NETWORKS[trained[0]][1])["source"]
    expected = beam_search(translator(trained, 3, seed=0), source)
    for seed in (1, 2):
        found = beam_search(translator(trained, 3, seed), source)
        assert [[t.words for t in beams] for beams in found] == [[t.words for t in beams] for beams in expected]
        for one, other in zip(found, expected):
            assert [t.score for t in one] == pytest.approx([t.score for t in other], rel=1e-9)


def test_sentences_do_not_disturb_one_another(trained: tuple[str, Executor]) -> None:
    """A speaker used again, and one sentence beside others, say the same."""
    source = sentences(13, NETWORKS[trained[0]][1])["source"]
    speaker = translator(trained, 3)
    first = beam_search(speaker, source)
    turned = beam_search(speaker, source[::-1].copy())
    assert [b[0].words for b in turned[::-1]] == [b[0].words for b in first]
    assert beam_search(speaker, source) == first


def test_weights_are_those_of_training_at_every_moment(trained: tuple[str, Executor]) -> None:
    name, run = trained
    build, config, kind = NETWORKS[name]
    graph = build(config, "float64")
    more = Executor(graph, random_strategy(graph, 2, Random(5)), Adam(0.02), seed=3)
    more.set_parameters(run.parameters())
    speaker = kind(config, 2, lambda part: random_strategy(part, 2, Random(6)), more, begin=BEGIN, end=END)
    source = sentences(21, config)["source"]
    assert [b[0].words for b in beam_search(speaker, source)] == [
        b[0].words for b in beam_search(translator(trained, 2), source)
    ]
    for step in range(30, 36):
        more.train(sentences(step, config))
    after = [b[0].score for b in beam_search(speaker, source)]
    fresh = kind(config, 2, undivided, more, begin=BEGIN, end=END)
    assert after == pytest.approx([b[0].score for b in beam_search(fresh, source)], rel=1e-9)
    assert after != pytest.approx([b[0].score for b in beam_search(translator(trained, 2), source)], rel=1e-6)


def test_wrong_arguments_are_named(trained: tuple[str, Executor]) -> None:
    name, run = trained
    _, config, kind = NETWORKS[name]
    with pytest.raises(ValueError, match=f"{name} encoder cannot use the weights"):
        kind(replace(config, hidden=4), 1, undivided, run, begin=BEGIN, end=END)
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        kind(config, 0, undivided, run, begin=BEGIN, end=END)
    speaker = translator(trained, 2)
    others = "memory, source" if name == "NMT" else "source, cross_states"
    with pytest.raises(ValueError, match=f"{name} decoder has no state 'h'; there are {others}"):
        speaker._decoder.set_state({"h": np.zeros(3)})
    with pytest.raises(ValueError, match=r"state source: shape must be \(4, 5\), got \(3,\)"):
        speaker._decoder.set_state({"source": np.zeros(3)})


class Scripted(Speaker):
    """Says what a table of the words so far says, for one sentence."""

    def __init__(self, table: dict[tuple[int, ...], list[float]], beams: int, steps: int) -> None:
        self.batch, self.beams, self.steps, self.begin, self.end = 1, beams, steps, 1, 0
        self.transport, self.table = LocalTransport(), table

    def hear(self, source: np.ndarray) -> None:
        self.said: list[tuple[int, ...]] = [()] * self.beams

    def scores(self, words: np.ndarray, parents: np.ndarray) -> np.ndarray:
        self.said = [(*self.said[p], int(w)) for p, w in zip(parents[0], words[0])]
        logs = np.log([[self.table.get(s[1:], [0.5, 0.5, 1e-9]) for s in self.said]])
        return logs + 7.0  # not normalised


def test_length_normalisation_and_what_greedy_misses() -> None:
    # 1 looks best at first, but what follows it is unsure; 2 leads to a long sentence that is surely right.
    table = {(): [0.05, 0.55, 0.4], (1,): [0.34, 0.33, 0.33], (2,): [1e-6, 0.01, 0.99], (2, 2): [0.98, 0.01, 0.01]}
    only = greedy(Scripted(table, 1, 4), np.zeros((1, 4)))[0]
    assert only.words == (1, 0)
    found = beam_search(Scripted(table, 2, 4), np.zeros((1, 4)), alpha=0.6)[0]
    assert found[0].words == (2, 2, 0)
    assert found[0].score == pytest.approx(np.log(0.4 * 0.99 * 0.98 / 1.000001) / length_penalty(3), rel=1e-5)
    assert found == sorted(found, key=lambda t: -t.score) and isinstance(found[1], Translation)
    # A short sentence is likelier than a long one only by its length: normalising turns the order.
    near = {(): [0.4, 1e-6, 0.6], (2,): [0.2, 1e-6, 0.8], (2, 2): [0.75, 0.1, 0.15]}
    plain, normal = (beam_search(Scripted(near, 3, 4), np.zeros((1, 4)), alpha=a)[0] for a in (0.0, 0.6))
    assert (plain[0].words, normal[0].words) == ((0,), (2, 2, 0))
    assert length_penalty(1) == 1 and length_penalty(7) == pytest.approx(2**0.6)


@pytest.mark.parametrize("seed", fast_among(range(6), range(2)))
@pytest.mark.parametrize("name", NETWORKS)
def test_a_strategy_of_training_serves_decoding(name: str, seed: int) -> None:
    build, config, kind = NETWORKS[name]
    graph = build(config)
    strategy = random_strategy(graph, 4, Random(seed))
    run = Executor(graph, strategy, Adam(0.02))
    speaker = kind(config, 2, lambda part: alike(strategy, graph, part), run, begin=BEGIN, end=END)
    for part in (speaker._encoder, speaker._decoder):
        placed: Strategy = part.strategy
        placed.verify(part.graph)
        for node in part.graph:
            if node.name == "softmax":  # the same cut of the classes: all sizes allow it
                assert placed[node.name].degrees[-2:] == strategy[node.name].degrees[-2:]
