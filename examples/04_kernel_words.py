"""Words compared by spelling
==========================

Words compared by their spelling: string kernels, nearest neighbours and a map.

You pass strings to `fit` directly. `Spectrum(n)` counts common substrings of n letters. `Subsequence(n, decay)` counts
common letters in the same order, and gaps reduce the count. Both grow with the length of the words, so they are
normalised.

What to see: substrings of 3 letters fail if the words of a family differ in a letter in the middle. "sang" shares none
with any other word, so all words are equally far from it. Subsequences bridge such changes (sang, sung). `transform`
takes new words like rows; they may be longer than any word of the fit. Two axes capture a fifth of the variance,
because families have little in common: the axes represent one family after the other, or endings that families share.
"""

from pathlib import Path

import numpy as np
from tutorial_data import options, output_folder

import bigpca as bp
from bigpca.kernels import Kernel, Spectrum, Subsequence, normalized

FAMILIES = {
    "sing": "sing sang sung song singer singing songs",
    "nation": "nation nations national nationality international nationwide",
    "compute": "compute computer computing computation computed supercomputer",
    "observe": "observe observer observed observation observatory",
    "write": "write writer writing written wrote rewrite",
    "colour": "colour colours coloured colourful colourless",
    "foot": "foot feet footing football barefoot",
    "drink": "drink drank drunk drinker drinking",
    "break": "break broke broken breaking breaker unbreakable",
}
NEW = (
    "singers",
    "computable",
    "unwritten",
    "discolouration",
    "drunkard",
    "footballers",
    "heartbreaking",
    "observations",
)
TIE = 1e-9
LETTER, LINE, GAP = 0.0105, 0.024, 0.008  # a letter's width, a line's height, from dot to word: of the map's size
MAPPED = "subsequences of 2"
KERNELS: dict[str, Kernel] = {
    "substrings of 2": normalized(Spectrum(2)),
    "substrings of 3": normalized(Spectrum(3)),
    "subsequences of 2": normalized(Subsequence(2, decay=0.5)),
    "subsequences of 3": normalized(Subsequence(3, decay=0.5)),
}


def squared_distances(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    return ((rows[:, None] - known) ** 2).sum(axis=2)


def right_share(scores: np.ndarray, families: np.ndarray) -> np.ndarray:
    """For each row, the share of its family among the nearest others; more than one where they tie."""
    distances = squared_distances(scores, scores)
    np.fill_diagonal(distances, np.inf)
    nearest = distances < distances.min(axis=1)[:, None] + TIE
    return (nearest & (families == families[:, None])).sum(axis=1) / nearest.sum(axis=1)


def label_sides(places: np.ndarray, words: np.ndarray) -> list[int]:
    """1 for words that go right of their dots, -1 for left, so that none covers a dot or
    a word; 0 where there is no room.
    """
    boxes: list[tuple[np.ndarray, np.ndarray]] = []  # low and high corners
    sides = [0] * len(words)
    for i, (place, word) in enumerate(zip(places, words, strict=True)):
        width = LETTER * len(word)
        for side, start in ((1, GAP), (-1, -GAP - width)):
            low = place + np.array([start, -LINE / 2])
            high = low + np.array([width, LINE])
            covers_dot = ((places > low - GAP / 2) & (places < high + GAP / 2)).all(axis=1).any()
            if not covers_dot and all((low > upper).any() or (high < lower).any() for lower, upper in boxes):
                boxes.append((low, high))
                sides[i] = side
                break
    return sides


def main(arguments: list[str] | None = None) -> None:
    given = options(__doc__).parse_args(arguments)
    folder = output_folder(given.out)
    words = np.array([word for family in FAMILIES.values() for word in family.split()])
    families = np.array([name for name, family in FAMILIES.items() for _ in family.split()])

    print(f"{len(words)} words of {len(FAMILIES)} families: whose nearest neighbour is of the family\n")
    fitted = {}
    for name, kernel in KERNELS.items():
        model = bp.KernelPCA(kernel=kernel).fit(words)
        scores = model.transform(words)
        right = right_share(scores, families)
        fitted[name] = model, scores
        lost = ", ".join(words[right < 1]) or "none"
        print(
            f"{name:18} {right.mean():6.1%}   2 axes hold {model.explained_variance_ratio_[:2].sum():.0%}   not: {lost}"
        )
    print(f"\n{'new word':16}" + "".join(f"{name:>20}" for name in KERNELS))
    found = {
        name: words[squared_distances(model.transform(np.array(NEW)), scores).argmin(axis=1)]
        for name, (model, scores) in fitted.items()
    }
    for i, word in enumerate(NEW):
        print(f"{word:16}" + "".join(f"{neighbours[i]:>20}" for neighbours in found.values()))
    draw(folder, words, families, fitted[MAPPED][1])


def draw(folder: Path, words: np.ndarray, families: np.ndarray, scores: np.ndarray) -> None:
    """Draw the words on two pairs of axes, if Matplotlib is installed."""
    try:
        from matplotlib.figure import Figure

        from bigpca.plots.style import COLOURS, save_picture
    except ImportError:
        return
    colours = dict(zip(FAMILIES, COLOURS, strict=False))
    figure = Figure(figsize=(17, 8.5), dpi=90, layout="constrained", facecolor="white")
    for axes, pair in zip(figure.subplots(1, 2), ((0, 1), (2, 3)), strict=True):
        places = scores[:, pair] / np.ptp(scores[:, pair], axis=0)
        axes.scatter(*places.T, s=12, color=[colours[family] for family in families])
        axes.set(xlabel=f"score on kpca{pair[0]}", ylabel=f"on kpca{pair[1]}", xticks=[], yticks=[])
        axes.margins(0.13)
        for word, family, place, side in zip(words, families, places, label_sides(places, words), strict=True):
            if side:
                drawn = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 9}
                axes.annotate(
                    word, place, (4 * side, 0), ha="left" if side > 0 else "right", color=colours[family], **drawn
                )
    figure.suptitle(f"Words by {MAPPED} letters, a colour for each family")
    print(f"\nthe map: {save_picture(figure, folder / 'kernel_words.png')}")


if __name__ == "__main__":
    main()
