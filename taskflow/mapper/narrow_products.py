"""NARROW_PRODUCTS: the types narrower than the network's in which a plan may have the products of layers, a row each.

Plans write the row's word, as in ``products=fp8``; costs price by it. Targets that have such products say how in tables of their
own (`taskflow.export.megatron`, `torchtitan`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NarrowProducts:
    """Products whose factors are brought into a narrower type, of ``itemsize`` bytes. ``rate``: the type's name in machine files
    (``flops_per_second``, ``matrix_products``). ``divides``: what the features of a linear layer divide by, for its products to be
    in this type; those of others are in the network's."""

    rate: str
    itemsize: int
    divides: int


NARROW_PRODUCTS = {
    "fp8": NarrowProducts("float8", 1, 16),  # torchtitan's and Transformer Engine's rule
}


def narrow_rate(rate: str) -> NarrowProducts | None:
    """Return the row whose products a device's factors are brought into, if it multiplies at ``rate`` by a plan; else None."""
    return next((one for one in NARROW_PRODUCTS.values() if one.rate == rate), None)
