"""What kernels made of several kernels compute from those: values combined in place, and feature maps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np

from bigpca.kernels.rows import Block, raise_to, reject_overflow, widened, widens


def weighted_sum(parts: Iterable[Block], weights: tuple[float, ...], constant: float) -> Block:
    """Return ``sum_i weights_i parts_i + constant``, in one of the parts or their wider copies.

    Raises
    ------
    ValueError
        If it overflows float64.
    """
    factors = (*weights, constant)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = (widened(part, *factors) for part in parts)
        weighted = (np.multiply(part, weight, out=part) for part, weight in zip(wide, weights, strict=True))
        total = reduce(_add, weighted)
        total += constant
    if widens(*factors):
        reject_overflow(total, "a weighted sum of kernel values")
    return total


def product_of_powers(parts: Iterable[Block], exponents: tuple[float, ...]) -> Block:
    """Return ``prod_i parts_i ** exponents_i`` in float64; integer powers of negative values keep their sign.

    Raises
    ------
    ValueError
        If it overflows, and for negative values under exponents that are not integers.
    """
    powers = (_power(part, exponent) for part, exponent in zip(parts, exponents, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):
        result = reduce(lambda total, part: np.multiply(total, part, out=total), powers)
    reject_overflow(result, "a product of kernel values")
    return result


def side_by_side(parts: Iterable[Block], weights: tuple[float, ...], constant: float) -> Block:
    """Return the feature map (b, D) of a weighted sum: those of the parts, and a column for the constant."""
    scaled = [part * float(np.sqrt(weight)) for part, weight in zip(parts, weights, strict=True)]
    if constant > 0:
        scaled.append(np.full((len(scaled[0]), 1), np.sqrt(constant), scaled[0].dtype))
    return np.concatenate(scaled, axis=1)


def kronecker(parts: Iterable[Block], exponents: tuple[float, ...]) -> Block:
    """Return the feature map (b, D) of a product of powers: all products of one column of each factor."""
    factors = (part for part, p in zip(parts, exponents, strict=True) for _ in range(int(p)))
    return reduce(lambda left, right: (left[:, :, None] * right[:, None, :]).reshape(len(left), -1), factors)


def _add(total: Block, part: Block) -> Block:
    """Add two blocks in place, in the one with the wider dtype."""
    return np.add(total, part, out=total if total.dtype.itemsize >= part.dtype.itemsize else part)


def _power(block: Block, exponent: float) -> Block:
    block = block.astype(np.float64, copy=False)
    if isinstance(exponent, int):
        raise_to(block, exponent)
        return block
    if (lowest := float(block.min(initial=0.0))) < 0:
        raise ValueError(
            f"a kernel value is {lowest:.6g}, which has no real power {exponent}; values >= 0 were expected. "
            "Use an integer."
        )
    return np.power(block, exponent, out=block)
