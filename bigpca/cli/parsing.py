"""Parsing of option values: sizes, numbers of components, sketches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from bigpca.errors import closest

if TYPE_CHECKING:
    from bigpca.sketches import Sketch

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
RULES = ("mle", "elbow", "marchenko-pastur", "gavish-donoho")
SKETCHES = {"gaussian": "Gaussian", "sparse-sign": "SparseSign", "feature-hash": "FeatureHash", "srht": "SRHT"}


def parse_size(text: str) -> int:
    """Parse a number of bytes such as "512MiB", "2GB" or "1e9".

    >>> parse_size("512MiB"), parse_size("2 GB")
    (536870912, 2000000000)
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    try:
        if match is None or not (size := int(float(match[1]) * UNITS[match[2]])):
            raise ValueError
    except (ValueError, KeyError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size. Write a number and a unit, such as 512MiB or 4GB.") from None
    return size


def parse_n_components(text: str) -> Any:
    """Parse a number of components: an integer, a fraction of the variance, the name of a rule, or "all".

    >>> parse_n_components("64"), parse_n_components("0.95"), parse_n_components("elbow"), parse_n_components("all")
    (64, 0.95, 'elbow', None)
    """
    if text == "all":
        return None
    if text in RULES:
        return text
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a number of components. Write an integer, a fraction of the variance such as 0.95, "
            f"all, or a rule: {', '.join(RULES)}.{closest(text, ('all', *RULES))}"
        ) from None


def parse_sketch(text: str, seed: int) -> Sketch:
    """Parse a sketch: its kind and number of columns, or for images their sizes before and after.

    >>> parse_sketch("gaussian:500", 7), parse_sketch("downsample:3x8x8:3x4x4", 0)
    (Gaussian(seed=7, q=500), Downsample(seed=0, shape=(3, 8, 8), to=(3, 4, 4)))
    """
    from bigpca import sketches

    columns = re.fullmatch(rf"({'|'.join(SKETCHES)}):(\d+)", text)
    images = re.fullmatch(r"downsample:(\d+(?:x\d+)*):(\d+(?:x\d+)*)", text)
    try:
        if columns is not None:
            made: Sketch = getattr(sketches, SKETCHES[columns[1]])(int(columns[2]), seed=seed)
            return made
        if images is not None:
            shape, to = (tuple(int(size) for size in sizes.split("x")) for sizes in images.groups())
            return sketches.Downsample(shape, to, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a valid sketch: {error}") from None
    hint = closest(text.partition(":")[0], SKETCHES)
    raise typer.BadParameter(
        f"{text!r} is not a sketch.{hint} Write a kind ({', '.join(SKETCHES)}) and its columns, such as gaussian:500, "
        "or the sizes of images before and after, such as downsample:3x224x224:3x56x56."
    )


def parse_positions(text: str) -> slice | list[int] | list[str]:
    """Parse positions along an axis, or names of columns.

    >>> parse_positions("0:512"), parse_positions("1:"), parse_positions("3,1,7"), parse_positions("age,height")
    (slice(0, 512, None), slice(1, None, None), [3, 1, 7], ['age', 'height'])
    """
    if re.fullmatch(r"(-?\d+)?:(-?\d+)?(:-?\d+)?", text):
        return slice(*(int(part) if part else None for part in text.split(":")))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts and all(re.fullmatch(r"-?\d+", part) for part in parts):
        return [int(part) for part in parts]
    if not parts:
        raise typer.BadParameter(f"{text!r} chooses nothing. Write a range such as 0:512, or positions such as 3,1,7.")
    return parts


def parse_axis(text: str) -> tuple[str, slice | list[int] | int]:
    """Parse the positions or the size of an axis of a pattern.

    >>> parse_axis("t=1:"), parse_axis("t=0,2"), parse_axis("h=28")
    (('t', slice(1, None, None)), ('t', [0, 2]), ('h', 28))
    """
    name, _, value = text.partition("=")
    found = parse_positions(value) if name.isidentifier() and value else [""]
    if isinstance(found, list) and isinstance(found[0], str):
        raise typer.BadParameter(
            f"{text!r} is not an axis of a pattern and its positions. Write t=1: for all but the first position of "
            "axis t, t=0,2 for two, or h=28 for its size."
        )
    whole = re.fullmatch(r"\d+", value)
    return name, int(value) if whole else found


def parse_preprocess(text: str) -> Any:
    """Parse steps of preprocessing, separated by commas.

    >>> parse_preprocess("power:0.5,l2"), parse_preprocess("l2:keep")
    ([Power(exponent=0.5), L2(zero_rows='raise')], [L2(zero_rows='keep')])
    """
    import bigpca as bp

    made: list[Any] = []
    for step in text.lower().split(","):
        name, _, value = step.strip().partition(":")
        try:
            if name not in ("l2", "power"):
                raise ValueError(f"{step!r} is not a step; l2, l2:keep and power:0.5 are known")
            made.append(bp.Power(_exponent(step, value)) if name == "power" else bp.L2(value or "raise"))
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", param_hint="'--preprocess'") from None
    return made


def _exponent(step: str, text: str) -> float:
    try:
        return float(text or 0.5)
    except ValueError:
        raise ValueError(
            f"{step!r} has no number after the colon; one in (0, 1] was expected, as in power:0.5"
        ) from None


def parse_scale(text: str) -> Any:
    """Parse a scale: a rule, or a file of one number for each column.

    >>> parse_scale("patterson"), parse_scale("patterson:4")
    (Patterson(ploidy=2), Patterson(ploidy=4))
    """
    import numpy as np

    import bigpca as bp

    name, _, ploidy = text.partition(":")
    try:
        return bp.Patterson(int(ploidy or 2)) if name == "patterson" else np.load(text, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a scale: {error}. Write patterson, patterson:4, or the path of a .npy file.",
            param_hint="'--scale-by'",
        ) from None


def parse_whitening(text: str) -> Any:
    """Parse a whitening: its power, and after colons its epsilon and "l2".

    >>> parse_whitening("0.25"), parse_whitening("0.5:1e-3:l2")
    (Whitening(power=0.25, epsilon=0.0, l2=False), Whitening(power=0.5, epsilon=0.001, l2=True))
    """
    import bigpca as bp

    parts = re.fullmatch(r"([^:]+)(?::([^:l]+))?(:l2)?", text.lower())
    try:
        if parts is None:
            raise ValueError
        return bp.Whitening(float(parts[1]), float(parts[2] or 0), l2=parts[3] is not None)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a whitening. Write a power such as 0.5, with an epsilon 0.5:0.001, or also l2: 0.5:0:l2.",
            param_hint="'--whitening'",
        ) from None
