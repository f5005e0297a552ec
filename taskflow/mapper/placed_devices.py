"""placed_devices: the devices of a machine on which a plan places its pieces."""

from __future__ import annotations

from taskflow.machine import Machine
from taskflow.mapper.plan import HybridPlan


def placed_devices(plan: HybridPlan, machine: Machine) -> tuple[int, ...]:
    """Return the machine's devices in the order in which a plan uses them. Raises ValueError that says which name or number
    does not exist, or occurs twice."""
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
