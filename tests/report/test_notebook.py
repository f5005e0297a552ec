"""What values say of themselves: one line as text, a picture in a notebook."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from report_cases import EVIL, judge_of

import taskflow
from taskflow.drawing import Drawing, device_colour
from taskflow.machine import load_machine
from taskflow.mapper import OpConfig, Strategy, choose
from taskflow.models import build
from taskflow.partition import Grid, Image, Partition, Replicate, Tile
from taskflow.regions import Rect
from taskflow.tasks.simulate import Timeline


def parsed(html: str) -> ET.Element:
    """Well-formed, so that it is no trouble inside a page; nothing is fetched."""
    assert "script" not in html and not re.search(r"(src|href)=", html)
    return ET.fromstring(html)


def boxes(html: str) -> list[tuple[str, str]]:
    """(colour, title) of every filled box."""
    found = []
    for group in parsed(html).iter("{http://www.w3.org/2000/svg}g"):
        title, rect = group.find("{*}title"), group.find("{*}rect")
        assert title is not None and rect is not None
        if rect.get("fill") != "none":
            found.append((str(rect.get("fill")), str(title.text)))
    return found


def values() -> list[tuple[object, str]]:
    evaluator = judge_of("RNNTC", 4)
    strategy = choose("expert", evaluator.graph, evaluator.machine)[0]
    seconds = evaluator.set(strategy)
    timeline = evaluator.timeline()
    return [
        (evaluator.graph, f"RNNTC: {len(evaluator.graph)} operators, {evaluator.graph.parameter_count:,} parameters, float32"),
        (strategy, f"expert: {len(evaluator.graph)} operators in {len(evaluator.graph)} pieces on 4 of 4 processors"),
        (evaluator.machine, "k80: 4 x k80 on 1 node"),
        (timeline, f"Timeline of {len(timeline.spans)} tasks in {seconds * 1e3:.4g} ms"),
        (Tile((10, 4), (3, 2)), "Tile [0:10, 0:4] cut 3x2"),
        (Replicate((4,), 2), "Replicate [0:4] x 2 copies"),
        (Image(Tile((10,), (2,)), lambda r: r, Rect.of((10,))), "image over [0:10], 2 pieces"),
    ]


@pytest.mark.parametrize("place", range(7))
def test_one_line_and_a_picture(place: int) -> None:
    value, line = values()[place]
    assert repr(value) == line
    html = value._repr_html_()  # type: ignore[attr-defined]
    assert line in "".join(parsed(html).itertext())
    assert len(html) < 400_000


def test_a_partition_draws_its_pieces_on_processors() -> None:
    processors = [3, 1, 2, 0, 3, 1]
    drawn = boxes(Tile((10, 4), (3, 2)).draw(processors).html)
    assert [colour for colour, _ in drawn] == [device_colour(p, 4) for p in processors]
    rects = Tile((10, 4), (3, 2)).rects()
    assert all(str(rect) in title and title.endswith(f"on {p}") for rect, p, (_, title) in zip(rects, processors, drawn))
    with pytest.raises(ValueError, match="6 pieces need as many processors, got 2"):
        Tile((10, 4), (3, 2)).draw([0, 1])


@pytest.mark.parametrize("partition,panels", [
    (Tile((8, 8, 8), (2, 2, 2)), 2), (Tile((12,), (4,)), 1), (Replicate((4, 4), 3), 3), (Tile((6, 5), (6, 5)), 1),
    (Grid([(0, 3, 3, 7), (0, 2)]), 1), (Tile((), ()), 1),
    (Image(Tile((8, 8), (2, 2)), lambda r: Rect((r.lo[0] - 1, r.lo[1]), (r.hi[0] + 1, r.hi[1])), Rect.of((8, 8))), 4),
])
def test_every_piece_is_drawn_once(partition: Partition, panels: int) -> None:
    html = partition._repr_html_()
    full = [rect for rect in partition.rects() if not rect.empty]
    assert len(boxes(html)) == len(full)
    assert html.count("<svg") == panels


def test_areas_are_the_pieces_shares() -> None:
    tile = Tile((10, 4), (3, 2))
    for group, rect in zip(parsed(tile._repr_html_()).iter("{*}rect"), [Rect.of((10, 4)), *tile.rects()]):
        share = float(group.get("width", 0)) * float(group.get("height", 0))
        whole = 220 * 220 * 0.4
        assert abs(share / whole - rect.volume / 40) < 2e-3


def test_an_operators_configuration() -> None:
    graph = judge_of("MLP", 4).graph
    node = next(n for n in graph if n.operator.kind == "linear")
    config = OpConfig(tuple(2 if d.name in ("n", "c") else 1 for d in node.dims), (0, 1, 2, 3))
    assert [colour for colour, _ in boxes(config.draw(node).html)] == [device_colour(p, 4) for p in range(4)]


def test_a_gantt_chart_has_every_processor() -> None:
    evaluator = judge_of("RNNTC", 4)
    evaluator.set(choose("data", evaluator.graph, evaluator.machine)[0])
    drawing = evaluator.timeline().draw(evaluator.lowered())
    text = "".join(parsed(drawing.html).itertext())
    assert isinstance(drawing, Drawing) and all(f"processor {p}" in text for p in range(4))
    forward = [title for colour, title in boxes(drawing.html) if colour == "#3f83f8"]
    assert any(title.startswith("lstm0") for title in forward)
    assert Timeline((), ())._repr_html_().count("<svg") == 1


def test_names_are_text() -> None:
    graph = taskflow.OperatorGraph(name=EVIL)
    taskflow.input(graph, (4, 2), name=EVIL)
    strategy = choose("data", graph, load_machine("k80", 2))[0]
    for value in (graph, strategy, Strategy(2, strategy.configs, name=EVIL)):
        html = value._repr_html_()
        assert "<img" not in html and "</script" not in html
        assert EVIL in "".join(ET.fromstring(html).itertext())


def test_a_found_plan_says_how_it_was_found_and_shows_its_pieces() -> None:
    graph, machine = build("mlp", preset="small"), load_machine("k80", 4)
    found = taskflow.search(graph, machine, budget="20p", constraints={"fc1": {"pin": "n/4 @ 0-3"}})
    line = repr(found)
    assert "\n" not in line and line.startswith(repr(found.strategy)) and "20 proposals" in line and "ms a step" in line
    html = found._repr_html_()
    assert boxes(html) == boxes(found.strategy._repr_html_()) and "ms a step" in html
