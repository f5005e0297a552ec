"""More of `onnx_cases`: rounding, rests, places, masks of floats."""

from __future__ import annotations

import numpy as np
from onnx_cases import BOOL, FLOAT, LONG, MAKERS, Case, Maker, masked


def _rest(c: Case) -> str:
    if c.r.random() < 0.5:
        counts = c.add("Sub", [c.add("Mul", [c.ids(2, 3), c.ints(5)]), c.ints(2)])
        rest = c.add("Mod", [counts, c.keep(np.int64(c.r.choice([2, 3, -3])))], fmod=c.r.choice([None, 0, 1]))
        return c.add("Mul", [c.add("Cast", [rest], to=FLOAT), c.x(2, 3)])
    return c.add("Mod", [c.x(2, 3), c.keep(np.float32(0.7))], fmod=1)


def _place(kind: str) -> Maker:
    def made(c: Case) -> str:
        found = c.add(kind, [c.x(2, 3, 4)], axis=c.r.choice([None, 1, 2, -1]), keepdims=c.r.choice([None, 0, 1]))
        return c.add("Cast", [found], to=FLOAT)

    return made


def _of_floats(kind: str) -> Maker:
    """A question about floats of which some are none, or infinite, and what is taken by it."""

    def made(c: Case) -> str:
        odd = c.add("Div", [c.x(2, 3), c.keep(np.array([1, 0, 1], "float32"))])
        odd = c.add("Sub", [odd, odd]) if kind == "IsNaN" else odd
        said = {key: c.r.choice([None, 0, 1]) for key in ("detect_negative", "detect_positive") if kind == "IsInf"}
        mask = c.add(kind, [odd], **said)
        plain = c.add("Where", [c.add("IsInf", [odd]), c.x(2, 3), odd]) if kind == "IsInf" else c.x(2, 3)
        return c.add("Where", [mask, c.x(2, 3), plain])

    return made


def _side(c: Case) -> str:
    mask = c.add(c.r.choice(["Less", "GreaterOrEqual"]), [c.x(2, 3), c.r.choice([c.keep(np.float32(0.1)), c.x(2, 3)])])
    counted = c.add("Cast", [c.r.choice([mask, c.add("Cast", [c.x(2, 3)], to=BOOL), c.x(2, 3)])], to=LONG)
    hidden = c.add("Div", [c.x(2, 3), c.keep(np.array([1, 0, 1], "float32"))])
    taken = c.add("Where", [c.keep(np.array([[True, False, True]])), hidden, c.x(2, 3)])
    return c.add("Where", [mask, taken, c.add("Cast", [counted], to=FLOAT)])


MAKERS.update(
    {kind: (lambda c, kind=kind: c.add(kind, [c.add("Mul", [c.x(2, 3), c.keep(np.float32(3))])])) for kind in (
        "Floor", "Ceil", "Round", "Sign",
    )}
)
MAKERS.update({kind: (lambda c, kind=kind: c.add(kind, [c.x(2, 3)])) for kind in ("Tan", "Sinh", "Cosh")})
MAKERS.update({
    "Mod": _rest, "ArgMax": _place("ArgMax"), "ArgMin": _place("ArgMin"), "Xor": masked("Xor"), "IsNaN": _of_floats("IsNaN"),
    "IsInf": _of_floats("IsInf"), "sides of floats": _side,
    "Trilu": lambda c: c.add("Trilu", [c.x(2, 3, 4), *c.r.choice([[], [c.keep(np.int64(1))]])], upper=c.r.choice([None, 0, 1])),
})
