"""Symmetry: renumberings of a machine's processors that change no cost. Of plans that differ only by one of them, a search
looks at one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from taskflow.mapper import OpConfig
from taskflow.optimizer.cost import Costs

MOST = 5040  # renumberings that are listed; of a larger group only the identity is used
Renumbering = tuple[int, ...]  # processor -> its new number


def renumberings(costs: Costs, processors: int) -> list[Renumbering]:
    """Return all renumberings that keep every processor's class and the class of every route, the identity first. They are a
    group in the mathematical sense: on a node of equal, equally linked processors all permutations; with pairs behind switches
    those that keep pairs together."""
    everyone = range(processors)
    kind = [costs.processor_class(p) for p in everyone]
    route = [[costs.route_class(p, q) if p != q else () for q in everyone] for p in everyone]

    def extend(image: list[int]) -> Iterator[Renumbering]:
        p = len(image)
        if p == processors:
            yield tuple(image)
            return
        for q in everyone:
            if q in image or kind[q] != kind[p]:
                continue
            if all(route[p][i] == route[q][j] and route[i][p] == route[j][q] for i, j in enumerate(image)):
                yield from extend([*image, q])

    found: list[Renumbering] = []
    for image in extend([]):
        found.append(image)
        if len(found) > MOST:
            return [tuple(everyone)]
    return found


def renumbered(config: OpConfig, image: Renumbering) -> OpConfig:
    """Return the same pieces on the renumbered processors."""
    return replace(config, processors=tuple(image[p] for p in config.processors))


class Symmetry:
    """Renumberings under which every list of ``choices`` is closed. ``image[k][decision][i]``: what choice i of a decision
    becomes under renumbering k. ``choices``: for each decision the configurations of its operators, by choice."""

    def __init__(self, costs: Costs, processors: int, choices: Sequence[Sequence[Sequence[OpConfig]]]) -> None:
        self.group: list[Renumbering] = []
        self.image: list[list[list[int]]] = []
        places = [{tuple(configs): i for i, configs in enumerate(of)} for of in choices]
        for renumbering in renumberings(costs, processors):
            image = _image(renumbering, choices, places)
            if image is not None:
                self.group.append(renumbering)
                self.image.append(image)

    def representatives(self, decision: int, stabilizer: Sequence[int]) -> list[int]:
        """Return the first choice of each set of choices that ``stabilizer`` (indices into ``group``) maps to each other."""
        images = [self.image[k][decision] for k in stabilizer]
        return [i for i in range(len(images[0])) if all(image[i] >= i for image in images)]

    def stabilizer(self, decision: int, choice: int, of: Sequence[int]) -> list[int]:
        """Return those of ``of`` that leave a choice unchanged."""
        return [k for k in of if self.image[k][decision][choice] == choice]


def _image(
    renumbering: Renumbering,
    choices: Sequence[Sequence[Sequence[OpConfig]]],
    places: Sequence[Mapping[tuple[OpConfig, ...], int]],
) -> list[list[int]] | None:
    """None if a choice becomes something that is not in its list."""
    result = []
    for of, place in zip(choices, places):
        row = [place.get(tuple(renumbered(config, renumbering) for config in configs), -1) for configs in of]
        if -1 in row:
            return None
        result.append(row)
    return result
