"""Denoising with a few axes
=========================

What 50, 100 and 200 axes keep of an unusual picture and of a noisy one: figure 2 of Marukatat (2022).

What to see: the pictures that stand out on the last axis of Fashion-MNIST have the finest checks. With 50 axes the
checks disappear, and with 200 a few come back. (On the tutorial's MNIST, it is a stray dot instead.) The noisy
pictures are new to the model. The axes keep the picture and little of the noise: k of 784 axes keep sqrt(k / 784) of
the noise, and lose everything else that the picture had outside their span. The best k is a compromise between blur
and noise.
"""
# sphinx_gallery_thumbnail_path = 'pictures/03_tutorial_denoising.webp'

from pathlib import Path

import numpy as np
from tutorial_data import FASHION_MISSING, options, output_folder, read_fashion

import bigpca as bp

AXES = (50, 100, 200)
SHOWN = 10
NOISE = 50.0  # standard deviation, in grey levels of 0 to 255


def through(model: bp.PCA, scores: np.ndarray, k: int) -> np.ndarray:
    """Pictures from their first k scores alone."""
    return model.inverse_transform(np.where(np.arange(scores.shape[1]) < k, scores, 0))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square difference of grey levels."""
    return float(np.sqrt(np.mean((a - b.astype("float64")) ** 2)))


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="pictures to learn from")
    given = parser.parse_args(arguments)
    train, test = read_fashion(given.fashion), read_fashion(given.fashion, "t10k")
    if train is None or test is None:
        print(f"skipped: {FASHION_MISSING}")
        return
    folder = output_folder(given.out)
    X = bp.ingest(train[0][: given.rows], folder / "train.zarr", overwrite=True)
    strips = {}

    # z-scored as in the tutorial: the last of 784 axes are what hardly any picture has
    scaled = bp.PCA(scale=True).fit(X)
    scores = scaled.transform(X, out=folder / "scores.zarr", overwrite=True)
    last = np.asarray(scores[:, -1]) / np.sqrt(scaled.explained_variance_[-1])
    unusual = np.sort(np.argsort(-np.abs(last))[:SHOWN])
    shown, scores_shown = np.asarray(X[unusual]), np.asarray(scores[unusual])
    print("furthest out on the last axis: " + ", ".join(f"row {row} ({last[row]:+.0f} sd)" for row in unusual[:5]))
    strips["furthest out on the last axis"] = shown
    strips |= {f"through {k} axes": through(scaled, scores_shown, k) for k in AXES}

    # not scaled, as the noise is the same in all pixels
    clean = test[0].astype("float32")
    noisy = clean + NOISE * np.random.default_rng(0).standard_normal(clean.shape, dtype="float32")
    model = bp.PCA(max(AXES)).fit(X)
    of_clean, of_noisy = (
        model.transform(clean),
        model.transform(bp.ingest(noisy, folder / "noisy.zarr", overwrite=True)),
    )
    of_noisy = np.asarray(of_noisy)
    print(
        f"\nof {len(clean):,} held-out pictures   off by, in grey levels of 255\n  all axes             "
        f"{distance(noisy, clean):6.1f}"
    )
    strips |= {"held out": clean[:SHOWN], f"with noise of {NOISE:g} grey levels": noisy[:SHOWN]}
    for k in AXES:
        found = through(model, of_noisy, k)
        blur, noise = distance(through(model, of_clean, k), clean), NOISE * np.sqrt(k / clean.shape[1])
        print(f"  {k:3} axes             {distance(found, clean):6.1f}   blur {blur:5.1f}, noise {noise:5.1f} expected")
        strips[f"noise through {k} axes"] = found[:SHOWN]
    draw(folder, strips)


def draw(folder: Path, strips: dict[str, np.ndarray]) -> None:
    """Draw the rows of pictures below one another, if Matplotlib is installed."""
    try:
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import image_tiles
        from bigpca.plots.style import save_picture

        tiles = {name: image_tiles(images, (28, 28), SHOWN, limits=(255, 0)) for name, images in strips.items()}
        picture = save_picture(
            picture_of_strips(tiles, title="Pictures through the leading axes"), folder / "denoising.png"
        )
    except ImportError:
        return
    print(f"\nthe pictures: {picture}")


if __name__ == "__main__":
    main()
