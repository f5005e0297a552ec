"""placed_devices: which of a machine's devices have the places of a plan."""

from __future__ import annotations

from taskflow.machine import Machine
from taskflow.mapper.notation import HybridPlan


def placed_devices(plan: HybridPlan, machine: Machine) -> tuple[int, ...]:
    """The machine's devices in the order in which a plan gives them places. ValueError that says which name or number there is
    not, or is there twice."""
    if not plan.devices:
        return tuple(range(len(machine.processors)))
    kinds = list(dict.fromkeys(processor.kind for processor in machine.processors))
    found: list[int] = []
    for one in plan.devices:
        if isinstance(one, str):
            if one not in kinds:
                raise ValueError(f"plan {plan}: devices= names kind {one!r}; the machine has {', '.join(kinds)}")
            found += [processor.number for processor in machine.processors if processor.kind == one]
        else:
            found.append(one)
    count = len(machine.processors)
    if wrong := [n for n in found if n >= count]:
        raise ValueError(f"plan {plan}: devices= names device {wrong[0]}; the machine has 0 to {count - 1}")
    if len(set(found)) < len(found):
        twice = next(n for i, n in enumerate(found) if n in found[:i])
        raise ValueError(f"plan {plan}: devices= gives device {twice} two places")
    return tuple(found)
