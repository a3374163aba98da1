"""Denoising with pre-images
=========================

Kernel PCA removes noise from digits: project the image of a noisy picture onto the axes, and find a picture that maps
to the projection.

What to see: `denoise` finds pre-images by the fixed-point iteration of Mika et al. (1999). They are weighted means of
the training pictures, so they look like digits. Their error is half that of linear PCA with its best number of axes,
and they can use more axes than there are pixels. `inverse_transform`, a ridge regression from scores to pixels, works
for any kernel, needs no iteration, and is in between. It applies the same kernel to the scores, and shrinks towards 0.
Rows are therefore centred, and scaled so that both rows and their images are about 1 apart. The width of the kernel
matters most: try --gamma 4.
"""

import numpy as np
from sklearn.datasets import load_digits
from tutorial_data import options, output_folder

import bigpca as bp
from bigpca.kernels import RBF

SHOWN = 14
LINEAR, KERNEL = (4, 8, 16, 32), (32, 64, 128, 256)  # axes


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1400, help="digits to learn from; the rest of 1,797 get the noise")
    parser.add_argument("--noise", type=float, default=4.0, help="standard deviation, in grey levels of 0 to 16")
    parser.add_argument("--gamma", type=float, default=1.0, help="of digits scaled to a mean squared distance of 2")
    given = parser.parse_args(arguments)
    folder, digits = output_folder(given.out), load_digits().data
    learnt, clean = digits[: given.rows], digits[given.rows :]
    noisy = clean + given.noise * np.random.default_rng(0).standard_normal(clean.shape)

    mean = learnt.mean(axis=0)
    scale = np.sqrt(((learnt - mean) ** 2).sum(axis=1).mean())
    X, noisy_X = (learnt - mean) / scale, (noisy - mean) / scale

    print(
        f"{len(learnt):,} digits learnt, {len(clean)} with noise: mean squared error, in squares of grey levels of 16\n"
    )
    print(f"{'as they are':40}{np.mean((noisy - clean) ** 2):8.2f}")
    strips = {"clean": clean, f"with noise of {given.noise:g} grey levels": noisy}
    best: dict[str, tuple[float, int, np.ndarray]] = {}
    for k in LINEAR:
        model = bp.PCA(k).fit(learnt)
        take("linear PCA", k, model.inverse_transform(model.transform(noisy)), clean, best)
    for k in KERNEL:
        kernel = bp.KernelPCA(k, kernel=RBF(given.gamma), fit_inverse_transform=0.1).fit(X)
        take("kernel PCA, fixed point", k, mean + scale * kernel.denoise(noisy_X), clean, best)
        regressed = kernel.inverse_transform(kernel.transform(noisy_X))
        take("kernel PCA, ridge regression", k, mean + scale * regressed, clean, best)
    strips |= {f"{name}, {k} axes: error {error:.2f}": found for name, (error, k, found) in best.items()}

    try:
        from tutorial_pictures import picture_of_strips

        from bigpca.plots.images import image_tiles
        from bigpca.plots.style import save_picture

        tiles = {name: image_tiles(rows[:SHOWN], (8, 8), SHOWN, gap=1, limits=(16, 0)) for name, rows in strips.items()}
        picture = save_picture(
            picture_of_strips(tiles, title="Noise removed from digits"), folder / "kernel_denoising.png"
        )
    except ImportError:
        return
    print(f"\nthe best of each: {picture}")


def take(
    name: str, k: int, found: np.ndarray, clean: np.ndarray, best: dict[str, tuple[float, int, np.ndarray]]
) -> None:
    """Print the error, and keep the pictures where it is the least of this name."""
    error = float(np.mean((found - clean) ** 2))
    print(f"{f'{name}, {k} axes':40}{error:8.2f}")
    if name not in best or error < best[name][0]:
        best[name] = error, k, found


if __name__ == "__main__":
    main()
