"""einsum: sums of products over the letters of the operands' subscripts (PyTorch: torch.einsum)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from string import ascii_letters

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Soap, Spec, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("einsum")
class Einsum(Operator):
    """One operand, summed and transposed ("abc->ca"), or the product of two ("nik,nkj->nij"). Every letter that is not in the
    output is summed over. No operand repeats a letter, and with two operands each letter is in the output or in both.

    The letters are the iteration space: those of the output cut it, the others are contracted.
    """

    work = Work.CONTRACTION

    equation: str

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        *operands, out = _split(self.equation)
        takes("einsum", inputs, len(operands))
        _check(self.equation, operands, out)
        if any(not spec.differentiable or spec.dtype != inputs[0].dtype for spec in inputs):
            raise ValueError(f"einsum: inputs must be float tensors of one type, got {', '.join(map(str, inputs))}")
        sizes = self._sizes(inputs)
        return (Spec(tuple(sizes[letter] for letter in out), inputs[0].dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        sizes, out = self._sizes(inputs), _split(self.equation)[-1]
        return tuple(
            Dim(letter, sizes[letter], Soap.SAMPLE if letter in out[:1] else Soap.ATTRIBUTE if letter in out else Soap.REDUCTION)
            for letter in self._letters
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads(tuple(self._part(letters, piece) for letters in _split(self.equation)[:-1]))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (self._part(_split(self.equation)[-1], piece),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=len(inputs) == 2, weights=False, outputs=False)

    def forward(self, call: Call) -> None:
        *operands, out = _split(self.equation)
        if len(operands) == 2:
            _product(call.kernels, operands, call.inputs, out, call.outputs[0], False)
        else:
            _sum(call.kernels, operands[0], call.inputs[0], out, call.outputs[0])

    def backward(self, call: Call) -> None:
        *operands, out = _split(self.equation)
        for number, target in enumerate(call.grad_inputs):
            if target is None:
                continue
            if len(operands) == 2:  # of "a, b -> c": dc, b -> a and dc, a -> b
                letters, arrays = (out, operands[1 - number]), (call.grad, call.inputs[1 - number])
                _product(call.kernels, letters, arrays, operands[number], target.array, target.accumulate)
            else:
                target.put(_aligned(out, call.grad, operands[0]))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * len(inputs)  # a product and a sum, or a sum

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        # A product for each of two operands. Of one, its gradient is the output's, spread: once an element, as `reduce` counts it.
        return (2 if len(inputs) == 2 else 1) * self.flops(inputs, piece)

    @property
    def _letters(self) -> str:
        """Those of the output, then those that are contracted."""
        *operands, out = _split(self.equation)
        return out + "".join(dict.fromkeys(letter for letter in "".join(operands) if letter not in out))

    def _sizes(self, inputs: Sequence[Spec]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for letters, spec in zip(_split(self.equation), inputs):
            if len(letters) != len(spec.shape):
                raise ValueError(f"einsum: {self.equation}: {letters!r} must name every dimension of {spec}")
            for letter, size in zip(letters, spec.shape):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(f"einsum: {self.equation}: {letter!r} is {sizes[letter]} and {size}: sizes must be equal")
        return sizes

    def _part(self, letters: str, piece: Rect) -> Rect:
        at = [self._letters.index(letter) for letter in letters]
        return Rect(tuple(piece.lo[i] for i in at), tuple(piece.hi[i] for i in at))

    @classmethod
    def example(cls, random: Random) -> Example:
        letters = random.sample("abcdefgh", random.randint(2, 5))
        sizes = {letter: random.randint(1, 4) for letter in letters}
        out = random.sample(letters, random.randint(0, len(letters)))
        if random.random() < 0.3:
            operands = [random.sample(letters, len(letters))]
        else:  # who has a letter: the first operand, the second, or both
            owners = {letter: random.choice(("0", "1", "01")) if letter in out else "01" for letter in letters}
            operands = [[x for x in random.sample(letters, len(letters)) if who in owners[x]] for who in "01"]
        equation = ",".join("".join(operand) for operand in operands) + "->" + "".join(out)
        specs = (Spec(tuple(sizes[x] for x in operand), np.dtype(np.float64)) for operand in operands)
        return Example(cls(equation), tuple(specs))


def _split(equation: str) -> list[str]:
    """The letters of every operand, then those of the output."""
    operands, out = equation.split("->")
    return [*operands.split(","), out]


def _check(equation: str, operands: Sequence[str], out: str) -> None:
    """ValueError unless it is an equation that one operator computes."""
    terms = (*operands, out)
    if len(operands) > 2 or any(len(set(term)) != len(term) or not set(term) <= set(ascii_letters) for term in terms):
        raise ValueError(f"einsum: {equation!r} must have one or two operands of letters that none of them repeats")
    if not set(out) <= set().union(*operands) or (len(operands) == 2 and (set(operands[0]) ^ set(operands[1])) - set(out)):
        raise ValueError(f"einsum: {equation!r}: letters of the output must be in an operand, others of two operands in both")


def _aligned(letters: str, array: Array, wanted: str) -> Array:
    """The array turned to ``wanted``, with a dimension of size 1 for each letter that it has not: a view."""
    turned = array.transpose([letters.index(x) for x in wanted if x in letters])
    return turned.reshape([array.shape[letters.index(x)] if x in letters else 1 for x in wanted])


def _sum(kernels: KernelSet, letters: str, array: Array, out: str, into: Array) -> None:
    left = [x for x in letters if x in out]
    total = array.sum(axis=tuple(i for i, x in enumerate(letters) if x not in out))
    into[...] = kernels.xp.asarray(total).transpose([left.index(x) for x in out])


def _product(
    kernels: KernelSet, letters: Sequence[str], arrays: Sequence[Array], out: str, into: Array, accumulate: bool
) -> None:
    """Compute it as one matrix product for every value of the letters that all three share."""
    a, b = letters
    batch = "".join(x for x in out if x in a and x in b)
    summed = "".join(x for x in a if x in b and x not in out)
    rows, columns = ("".join(x for x in out if x in one and x not in other) for one, other in ((a, b), (b, a)))
    if out == batch + columns + rows and rows and columns:  # the transposed product lies as it is wanted
        _product(kernels, (b, a), arrays[::-1], out, into, accumulate)
        return
    left, right = _matrix(kernels, a, arrays[0], batch, rows, summed), _matrix(kernels, b, arrays[1], batch, summed, columns)
    shape = (*left.shape[:-1], right.shape[-1])
    if out == batch + rows + columns and into.flags.c_contiguous:
        kernels.matmul(left, right, out=into.reshape(shape), accumulate=accumulate)
        return
    result = kernels.xp.empty(shape, into.dtype)
    kernels.matmul(left, right, out=result)
    sizes = dict(zip(out, into.shape))
    order = batch + rows + columns
    value = result.reshape([sizes[x] for x in order]).transpose([order.index(x) for x in out])
    if accumulate:
        into += value
    else:
        into[...] = value


def _matrix(kernels: KernelSet, letters: str, array: Array, batch: str, rows: str, columns: str) -> Array:
    """(batch, rows, columns), without the batch if no letter is in it; a view if the letters lie in this order or in that of
    the transpose."""
    sizes = dict(zip(letters, array.shape))
    count, height, width = (prod(sizes[x] for x in part) for part in (batch, rows, columns))
    lead = (count,) if batch else ()
    if letters == batch + columns + rows and rows and columns:
        return array.reshape(*lead, width, height).swapaxes(-1, -2)
    turned = array.transpose([letters.index(x) for x in batch + rows + columns])
    return kernels.xp.ascontiguousarray(turned).reshape(*lead, height, width)


# ---- building ----------------------------------------------------------------------------------------------------------


def einsum(equation: str, *operands: Tensor, name: str | None = None) -> Tensor:
    """Compute sums of products of the operands' elements, written as for numpy.einsum and torch.einsum.

    Args: ``equation`` such as "nik,nkj->nij": the letters of each operand's dimensions and of the output's; letters that are
    not in the output are summed over. Without "->", the output has the letters that occur once, in alphabetical order. "..."
    stands for the same number of dimensions in every operand that has it. Equal letters have equal sizes, and no operand
    repeats one. Operands: one or more float tensors. Three or more are multiplied two at a time, in the order that
    numpy.einsum_path finds cheapest, as operators of their own. Returns the output; its first letter is the sample dimension.
    """
    terms, out = _parse(equation, operands)
    left = dict(enumerate(zip(terms, operands)))
    label = name or "einsum"
    steps = _steps(terms, out, operands)
    for number, chosen in enumerate(steps):
        last = number == len(steps) - 1
        taken = [left.pop(i) for i in chosen]
        wanted = set(out).union(*(letters for letters, _ in left.values()))
        step = label if last else f"{label}.{number}"
        if len(taken) == 2:  # what only one of them has and nobody wants is summed first
            taken = [_summed(pair, wanted | set(taken[1 - i][0]), f"{step}.sum{i}") for i, pair in enumerate(taken)]
        seen = dict.fromkeys("".join(letters for letters, _ in taken))
        result = out if last else "".join(x for x in (*out, *(x for x in seen if x not in out)) if x in seen and x in wanted)
        left[len(terms) + number] = result, _apply([letters for letters, _ in taken], result, [t for _, t in taken], step)
    (_, tensor), = left.values()
    return tensor


def _summed(pair: tuple[str, Tensor], wanted: set[str], name: str) -> tuple[str, Tensor]:
    letters, tensor = pair
    kept = "".join(x for x in letters if x in wanted)
    return pair if kept == letters else (kept, _apply([letters], kept, [tensor], name))


def _apply(terms: Sequence[str], out: str, operands: Sequence[Tensor], name: str) -> Tensor:
    return operands[0].graph.apply(Einsum(f"{','.join(terms)}->{out}"), tuple(operands), name=name)[0]


def _steps(terms: Sequence[str], out: str, operands: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Operands to take at each step; the result of step number k is operand len(operands) + k."""
    count = len(operands)
    if count <= 2:
        return [tuple(range(count))]
    shapes = [np.broadcast_to(np.float32(0), tensor.shape) for tensor in operands]
    # Without a bound on memory, or numpy would take many operands at once.
    path, _ = np.einsum_path(f"{','.join(terms)}->{out}", *shapes, optimize=("greedy", 2**60))
    left = list(range(count))
    steps: list[tuple[int, ...]] = []
    for places in path[1:]:
        first, *others = (left[place] for place in places)
        left = [i for place, i in enumerate(left) if place not in places]
        for other in others:  # where numpy takes more than two all the same, one after another does
            steps.append((first, other))
            first = count + len(steps) - 1
        left.append(first)
    return steps


def _parse(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The letters of every operand and of the output. ValueError if the equation cannot be read."""
    text = equation.replace(" ", "")
    inputs, arrow, out = text.partition("->")
    terms = inputs.split(",")
    if not operands or len(terms) != len(operands):
        raise ValueError(f"einsum: {equation!r} has {len(terms)} operands, got {len(operands)} tensors")
    free = [x for x in ascii_letters if x not in text]
    counts = {t.ndim - len(term) + 3 for term, t in zip(terms, operands) if "..." in term}
    if len(counts) > 1 or any(count < 0 for count in counts):
        raise ValueError(f"einsum: {equation!r}: ... must stand for equally many dimensions of every operand, got {sorted(counts)}")
    dots = "".join(free[: counts.pop()]) if counts else ""
    if not arrow:
        once = sorted(x for x in set(inputs) - set(",.") if inputs.count(x) == 1)
        out = "..." * bool(dots) + "".join(once)
    terms, out = [term.replace("...", dots) for term in terms], out.replace("...", dots)
    for term in (*terms, out):
        if len(set(term)) != len(term) or not set(term) <= set(ascii_letters):
            raise ValueError(
                f"einsum: {equation!r}: operands and output must be letters, each at most once in one of them, got {term!r}"
            )
    if not set(out) <= set("".join(terms)):
        raise ValueError(f"einsum: {equation!r}: the output's letters must occur in an operand, got {out!r}")
    for term, tensor in zip(terms, operands):
        if len(term) != tensor.ndim:
            raise ValueError(f"einsum: {equation!r}: {term!r} must name every dimension of {tensor}")
    return terms, out
