"""Device groups: sets of processors that suit a machine's hierarchy, in the orders in which pieces may be assigned to them.

A cluster's processors form groups: those that share a switch, those of one node, all. Traffic within a group does not load the
links that join groups. A device set (team) takes an aligned range of the groups of one level, and of each the same aligned part
of its members. Examples: all nodes whole, half of the nodes, one processor of every node, one board of every node in a quarter
of them. Only the machine's routes are used, and groups may be of unequal size.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.machine import Machine
from taskflow.mapper import OpConfig
from taskflow.optimizer.space.space import place

DeviceGroup = tuple[int, ...]  # processors, in the order in which pieces are dealt to them
Level = tuple[DeviceGroup, ...]

MOST_RANGES = 16  # places of one length among the groups of a level


def levels(machine: Machine) -> tuple[Level, ...]:
    """Return the machine's groups, finest level first; each level covers all processors. Within a node two processors are
    closer the faster the slowest link between them is, and, if equal, the fewer links lie between them."""
    nodes: dict[int, list[int]] = {}
    for processor in machine.processors:
        nodes.setdefault(processor.node, []).append(processor.number)
    distances = {
        (p, q): _distance(machine, p, q) for members in nodes.values() for i, p in enumerate(members) for q in members[:i]
    }
    found: list[Level] = [tuple((p.number,) for p in machine.processors)]
    for most in sorted(set(distances.values())):
        level = tuple(group for members in nodes.values() for group in _joined(members, distances, most))
        if level != found[-1]:
            found.append(level)
    if len(nodes) > 1:
        found.append((tuple(p.number for p in machine.processors),))
    return tuple(found)


def _distance(machine: Machine, p: int, q: int) -> tuple[float, int]:
    route = machine.route(p, q)
    return (-min((link.bytes_per_second for link in route), default=0.0), len(route))


def _joined(
    members: Sequence[int], distances: dict[tuple[int, int], tuple[float, int]], most: tuple[float, int]
) -> list[tuple[int, ...]]:
    """Members of one node in groups, each within ``most`` of another of its group."""
    groups: list[list[int]] = []
    for p in members:
        near = [g for g in groups if any(distances[p, q] <= most for q in g)]
        merged = sorted({p, *(q for g in near for q in g)})
        groups = [g for g in groups if g not in near] + [merged]
    return sorted(tuple(g) for g in groups)


def teams(machine: Machine) -> tuple[DeviceGroup, ...]:
    """Return every device set once for each order: group by group, and round-robin over the groups."""
    return tuple(team for shape in shapes(machine) for team in shape)


def shapes(machine: Machine, most: int = 0) -> tuple[tuple[DeviceGroup, ...], ...]:
    """Return the same in lists of device sets that differ only in where they are: as many groups of one level, an equally large
    part of each, in the same order. ``most``: only lists whose first set has at most this many processors (0: all)."""
    found: dict[object, list[DeviceGroup]] = {}
    known: set[DeviceGroup] = set()
    for number, level in enumerate(levels(machine)):
        for groups in _ranges(level):
            size = max(len(group) for group in groups)
            for part in _parts(size):
                chosen = [[group[i] for i in part if i < len(group)] for group in groups]
                dealt = tuple(group[i] for i in range(len(part)) for group in chosen if i < len(group))
                for order, team in (("grouped", tuple(p for group in chosen for p in group)), ("dealt", dealt)):
                    if team and team not in known:
                        known.add(team)
                        found.setdefault((number, len(groups), len(part), order), []).append(team)
    return tuple(tuple(shape) for shape in found.values() if not most or len(shape[0]) <= most)


def _ranges(level: Level) -> list[Level]:
    """Aligned ranges of groups: of lengths that are powers of two or divide how many there are."""
    count, found = len(level), []
    for length in _lengths(count):
        starts = range(0, count - length + 1, length)
        found += [level[s : s + length] for s in list(starts)[:MOST_RANGES]]
    return found


def _parts(size: int) -> list[range]:
    return [range(s, s + length) for length in _lengths(size) for s in range(0, size - length + 1, length)]


def _lengths(count: int) -> list[int]:
    return [k for k in range(1, count + 1) if count % k == 0 or k & (k - 1) == 0]


def on_team(degrees: Sequence[int], team: Sequence[int], order: int = 0) -> OpConfig:
    """Assign pieces to a device set's processors in turn. ``order``: as in `taskflow.optimizer.space.space.place`."""
    slots = place(degrees, len(team), 0, 1, order)
    return OpConfig(slots.degrees, tuple(team[slot] for slot in slots.processors))
