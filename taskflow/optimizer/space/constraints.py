"""Constraints: a user's requirements on operators: pinned, forbidden or limited configurations, and pinned synchronisation of
layers.

Search enforces them in two places. `SearchSpace` holds only permitted configurations. `SearchSession`, through which every
search sets and proposes plans, repairs what moves and starting plans bring from elsewhere. So no plan that violates them is
ever simulated for a search, let alone returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, Sync, parse_config, parse_ranges, parse_sync, ranges
from taskflow.optimizer.space.permitted import Permitted
from taskflow.reading import Count, Entry, Name, Whole, named, read_as, read_json
from taskflow.wording import some

ANY = ""  # of max_degree: every dimension
_MOST_NAMES = 12  # of layers or operators in a message


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirement on the operators whose names match ``pattern`` (``*`` and ``?`` as in a shell).

    ``pin``: the configuration, as `OpConfig.describe` writes it. ``forbid``: dimensions that must not be cut. ``devices``: the
    only processors that pieces may run on. ``max_degree``: (dimension or ANY, most pieces along it). ``max_pieces``: of the
    whole operator. Empty values and 0 do not limit. ``sync``: synchronisation of the layers that match by their own name or by
    that of an operator that uses them (None: any).
    """

    pattern: str
    pin: str = ""
    forbid: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    max_degree: tuple[tuple[str, int], ...] = ()
    max_pieces: int = 0
    sync: Sync | None = None

    def __str__(self) -> str:
        parts = [f"pinned to {self.pin}"] if self.pin else []
        parts += [f"{d} not cut" for d in self.forbid]
        parts += [f"{d or 'degree'}<={k}" for d, k in self.max_degree]
        parts += [f"pieces<={self.max_pieces}"] if self.max_pieces else []
        parts += [f"on {ranges(self.devices)}"] if self.devices else []
        parts += [f"weights by {self.sync}"] if self.sync is not None else []
        return f"{self.pattern}: {', '.join(parts)}"

    def matches(self, name: str) -> bool:
        """True if it applies to this operator."""
        return name == self.pattern or fnmatchcase(name, self.pattern)

    @property
    def limits(self) -> bool:
        """True if it constrains operators, and not only synchronisation."""
        return bool(self.pin or self.forbid or self.devices or self.max_degree or self.max_pieces)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Rules that must all hold; an operator may match several."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, value: Constraints | Mapping[str, Any] | str | Path | None) -> Constraints:
        """Return constraints given as a table, as a file's name, or as Constraints."""
        if value is None:
            return cls()
        if isinstance(value, Constraints):
            return value
        if isinstance(value, (str, Path)):
            return cls.load(value)
        return cls.parse(value)

    @classmethod
    def load(cls, path: str | Path) -> Constraints:
        """Read constraints from a JSON file. Raises FileNotFoundError or ValueError with what to do."""
        return cls.parse(read_json(path, "constraints file"), str(path))

    @classmethod
    def parse(cls, value: Any, where: str = "constraints") -> Constraints:
        """Read a table: pattern -> {"pin": "n/4 @ 0-3", "forbid": ["c"], "devices": [0, 1] or "0-1", "max_degree": 4 or {"n":
        2}, "max_pieces": 8, "sync": "ring/every"}. Raises ValueError that begins with ``where``."""
        entries = read_as(dict[str, RuleEntry], value, where)
        return cls(tuple(_rule(pattern, entry, f"{where}: {named((pattern,))}") for pattern, entry in entries.items()))

    def __add__(self, other: Constraints) -> Constraints:
        return Constraints((*self.rules, *other.rules))

    def __bool__(self) -> bool:
        return bool(self.rules)

    def resolve(self, graph: OperatorGraph, processors: int) -> dict[str, Permitted]:
        """Return what each operator with a rule may have. Raises ValueError if a pattern matches none, names a dimension that
        none of its operators has, or contradicts another one."""
        found: dict[str, Permitted] = {}
        for rule in self.rules:
            _meant(rule, graph)
        for node in graph:
            rules = [rule for rule in self.rules if rule.limits and rule.matches(node.name)]
            if rules:
                found[node.name] = _permitted(node, rules, processors)
        return found

    def syncs(self, graph: OperatorGraph) -> dict[str, Sync]:
        """Return the synchronisation of the layers with a rule. Raises ValueError if a pattern matches no layer, or a layer is
        pinned in two ways."""
        layers: dict[str, set[str]] = {}
        for node in graph:
            for parameter in node.parameters:
                layers.setdefault(parameter.layer, {parameter.layer}).add(node.name)
        found: dict[str, tuple[Sync, Rule]] = {}
        for rule in self.rules:
            if rule.sync is None:
                continue
            about = [layer for layer, names in layers.items() if any(rule.matches(name) for name in names)]
            if not about:
                raise ValueError(
                    f"constraints: no layer of {graph.name} that has weights matches {rule.pattern!r}; there are "
                    f"{some(list(layers), _MOST_NAMES) or 'none'}"
                )
            for layer in about:
                before = found.setdefault(layer, (rule.sync, rule))
                if before[0] != rule.sync:
                    raise ValueError(f"constraints: the weights of {layer} are pinned twice: {before[1]}; {rule}")
        return {layer: sync for layer, (sync, _) in found.items()}

    def verify(self, strategy: Strategy, graph: OperatorGraph) -> None:
        """Raise ValueError that says which operator or layer of a strategy violates them and how."""
        permitted = self.resolve(graph, strategy.processors)
        for name, of in permitted.items():
            if why := of.violation(strategy[name]):
                raise ValueError(f"strategy {strategy.name}: {graph.node(name).name}: {why}")
        for layer, sync in self.syncs(graph).items():
            if strategy.sync(layer) != sync:
                raise ValueError(
                    f"strategy {strategy.name}: weights of {layer}: must be synchronised as pinned, {sync}, not "
                    f"{strategy.sync(layer)}"
                )

    def repair(self, strategy: Strategy, graph: OperatorGraph) -> Strategy:
        """Return the strategy with every configuration that is not permitted replaced by a similar one that is, and every layer
        synchronised as pinned; the same object if nothing has to change."""
        return repaired_strategy(self.resolve(graph, strategy.processors), self.syncs(graph), strategy)


def repaired(permitted: Mapping[str, Permitted], configs: Mapping[str, OpConfig], row: int = 0) -> Mapping[str, OpConfig]:
    """Return the configurations, each replaced by a permitted one if it is not. ``row``: the number of processors, if pieces
    must be on consecutive ones (placements "contiguous"); 0: anywhere."""
    changed = {n: of.repair(configs[n]) for n, of in permitted.items() if n in configs and of.violation(configs[n])}
    for name, config in configs.items() if row else ():
        of = permitted.get(name)
        if of is None or of.pin is None:
            config = changed.get(name, config)
            straight = in_a_row(config, (of.devices if of is not None else ()) or range(row))
            if straight != config:
                changed[name] = straight
    return {**configs, **changed} if changed else configs


def in_a_row(config: OpConfig, devices: Sequence[int]) -> OpConfig:
    """Return the same pieces on neighbours among ``devices``, the first of them where it was."""
    first = devices.index(config.processors[0])
    return replace(config, processors=tuple(devices[(first + i) % len(devices)] for i in range(len(config.processors))))


def repaired_strategy(
    permitted: Mapping[str, Permitted], syncs: Mapping[str, Sync], strategy: Strategy, row: int = 0
) -> Strategy:
    """Return a whole strategy repaired in this way, including its layers' synchronisation; its name then says so."""
    configs = repaired(permitted, strategy.configs, row)
    others = {layer: sync for layer, sync in syncs.items() if strategy.sync(layer) != sync}
    if configs is strategy.configs and not others:
        return strategy
    return replace(strategy, configs=configs, syncs={**strategy.syncs, **others}, name=f"{strategy.name} (repaired)", plan=None)


# ---- reading ---------------------------------------------------------------------------------------------------------
class RuleEntry(Entry, frozen=True, kw_only=True):
    """Requirements on operators. At least one key must be present."""

    pin: Annotated[Name, Meta(description="The configuration, such as n/4 @ 0-3.")] | UnsetType = UNSET
    forbid: Annotated[Name | list[Name], Meta(description="Dimensions that must not be cut.")] | UnsetType = UNSET
    devices: Annotated[
        Name | Annotated[list[Whole], Meta(min_length=1)],
        Meta(description="The only processors that pieces may run on: numbers, or a text such as 0-3."),
    ] | UnsetType = UNSET
    max_degree: Annotated[
        Count | dict[str, Count], Meta(description="The most pieces along every dimension, or along some by name.")
    ] | UnsetType = UNSET
    max_pieces: Annotated[Count, Meta(description="The most pieces of the operator.")] | UnsetType = UNSET
    sync: Annotated[Name, Meta(description="How the weights are kept equal, such as ring/every.")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if all(getattr(self, key) is UNSET for key in self.__struct_fields__):
            raise ValueError(f"must have some of {', '.join(map(repr, self.__struct_fields__))}")


def _rule(pattern: str, entry: RuleEntry, where: str) -> Rule:
    devices = parse_ranges(entry.devices, f"{where}.devices") if isinstance(entry.devices, str) else entry.devices or ()
    degree = entry.max_degree or {}
    forbid = (entry.forbid,) if isinstance(entry.forbid, str) else entry.forbid or ()
    degrees = {ANY: degree} if isinstance(degree, int) else degree
    return Rule(
        pattern, entry.pin or "", tuple(forbid), tuple(dict.fromkeys(devices)), tuple(degrees.items()), entry.max_pieces or 0,
        parse_sync(entry.sync, f"{where}.sync") if entry.sync else None,
    )


# ---- resolving -------------------------------------------------------------------------------------------------------
def _meant(rule: Rule, graph: OperatorGraph) -> None:
    """ValueError if a rule is about nothing."""
    nodes = [node for node in graph if rule.matches(node.name)]
    if not nodes and (rule.limits or rule.sync is None):
        raise ValueError(
            f"constraints: no operator of {graph.name} matches {rule.pattern!r}; there are "
            f"{some([n.name for n in graph], _MOST_NAMES)}"
        )
    dims = list(dict.fromkeys(dim.name for node in nodes for dim in node.dims))
    for name in (*rule.forbid, *(d for d, _ in rule.max_degree if d != ANY)):
        if name not in dims:
            raise ValueError(
                f"constraints: {rule.pattern!r}: no operator that matches has a dimension {name!r}; they have "
                f"{', '.join(dims) or 'none'}"
            )


def _permitted(node: Node, rules: Iterable[Rule], processors: int) -> Permitted:
    caps = [max(1, dim.size) for dim in node.dims]
    devices: tuple[int, ...] | None = None
    pins: dict[OpConfig, Rule] = {}
    pieces = 0
    for rule in rules:
        who = f"constraints: {rule.pattern!r}"
        if over := [d for d in rule.devices if d >= processors]:
            raise ValueError(f"{who}: processor {over[0]} does not exist; there are 0 to {processors - 1}")
        if rule.devices:
            devices = rule.devices if devices is None else tuple(d for d in devices if d in rule.devices)
            if not devices:
                raise ValueError(f"{who}: contradicts another rule: no device is left for {node.name}")
        limits = dict(rule.max_degree) | dict.fromkeys(rule.forbid, 1)
        for i, dim in enumerate(node.dims):
            caps[i] = min(caps[i], limits.get(dim.name, caps[i]), limits.get(ANY, caps[i]))
        pieces = min(x for x in (pieces, rule.max_pieces) if x) if pieces or rule.max_pieces else 0
        if rule.pin:
            try:
                pins[parse_config(rule.pin, node, processors)] = rule
            except ValueError as error:
                raise ValueError(f"{who}: {error}") from None
    if len(pins) > 1:
        raise ValueError(f"constraints: {node.name} is pinned twice: {'; '.join(str(rule) for rule in pins.values())}")
    names = tuple(dim.name for dim in node.dims)
    free = Permitted(names, tuple(caps), devices or (), pieces)
    for pin, rule in pins.items():
        if why := free.violation(pin):
            others = "; ".join(str(r) for r in rules if r is not rule) or str(rule)
            raise ValueError(f"constraints: {node.name} is pinned to {rule.pin!r}, but {why} ({others})")
        return replace(free, pin=pin)
    return free
