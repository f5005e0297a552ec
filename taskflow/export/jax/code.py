"""The text of an exported module for JAX: the plan's tables first, then what every such module has (support.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

from taskflow.export.jax.plan import JaxPlan, Spec

SUPPORT = Path(__file__).with_name("support.py")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def jax_code(plan: JaxPlan, title: str, about: str, file: str) -> str:
    """Return a module with the tables of a plan and the functions that use them. ``title``: the network's name. ``about``:
    sentences for its docstring. ``file``: its name."""
    text = SUPPORT.read_text("utf-8")
    head, _, rest = text.partition("# <plan>\n")
    tables, _, functions = rest.partition("# </plan>\n")
    assert tables and functions, "support.py has both marks"
    head = head[head.index("from __future__") :]
    return "\n".join([_docstring(plan, title, about, file), "", f"{head}", f"{_tables(plan)}{functions}"])


def _docstring(plan: JaxPlan, title: str, about: str, file: str) -> str:
    name = file.removesuffix(".py")
    notes = "".join(f"\n{note}" for note in plan.notes)
    return f'''"""{title} on {prod(plan.axes.values())} devices. Written by taskflow export; needs JAX alone.

{about}{notes}

    mesh = {name}.mesh()
    params = {name}.shard(params, mesh)  # names: keys with dots between them; or give a function names(path)
    state = {name}.init_state(optimizer, params, mesh)  # of optax
    step = {name}.train_step(loss, optimizer, mesh)  # loss(params, batch): a mean over samples
    for batch in batches:
        params, state, value = step(params, state, {name}.shard_batch(batch, mesh))

In your function write x = {name}.constrain(x, "NAME") behind the operators of ACTIVATIONS; for modules of flax.linen enter
{name}.constrained_flax() instead. Without it the compiler decides where activations lie.
"""'''


def _tables(plan: JaxPlan) -> str:
    parameters = by_pattern({
        name: ", ".join([repr(kept.shape), _spec(kept.spec), _spec(kept.state), *([str(kept.zero)] if kept.zero else [])])
        for name, kept in plan.parameters.items()
    })
    activations = by_pattern({
        name: "(" + "".join(f"{_spec(spec)}, " for spec in specs).rstrip(" ") + ")" for name, specs in plan.activations.items()
    })
    again = by_pattern({name: str(name in plan.recompute) for name in plan.activations})
    lines = [
        f"AXES = {_quoted(plan.axes)}  # of the mesh, the slowest first",
        f"ORDER = {tuple(plan.order)!r}  # the plan's devices in the order of the mesh",
        f"SAMPLES = {_names(plan.samples)}  # the axes that cut the batch",
        f"MICRO_BATCHES = {plan.micro_batches}",
        "PARAMETERS = {  # name (# is any number): shape, as it is read, as its optimiser state lies, ZeRO's stage",
        *(f'    "{name}": Kept({value}),' for name, value in parameters.items()), "}",
        "ACTIVATIONS = {  # operator: where what it makes lies, one after the other; (): as its inputs bring it",
        *(f'    "{name}": {value},' for name, value in activations.items()), "}",
        "RECOMPUTED = (  # operators that are computed again in the backward pass",
        *(f'    "{name}",' for name, value in again.items() if value == "True"), ")",
    ]
    return "\n".join(lines) + "\n"


def by_pattern(table: Mapping[str, str]) -> dict[str, str]:
    """Return the table with # for the numbers in names; all names of a pattern share one entry."""
    found: dict[str, set[str]] = {}
    for name, value in table.items():
        found.setdefault(NUMBER.sub("#", name), set()).add(value)
    return {
        (pattern if len(found[pattern := NUMBER.sub("#", name)]) == 1 else name): value for name, value in table.items()
    }


def _spec(spec: Spec) -> str:
    return f"P({', '.join(_entry(names) for names in spec)})"


def _entry(names: tuple[str, ...]) -> str:
    return "None" if not names else f'"{names[0]}"' if len(names) == 1 else _names(names)


def _names(names: Iterable[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"


def _quoted(axes: Mapping[str, int]) -> str:
    return "{" + ", ".join(f'"{name}": {size}' for name, size in axes.items()) + "}"
