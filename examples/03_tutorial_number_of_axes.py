"""How many components?
====================

How many axes capture 90, 95 and 99 % of the variance of z-scored data: table 2 of Marukatat (2022).

What to see: the bundled data sets give the tutorial's numbers. Iris has 4 columns (the tutorial prints 50).
Fashion-MNIST replaces MNIST, with the same number of rows and pixels; MNIST took 236, 331 and 543 axes. Its 60,000
rows are read from a store on disk.
"""

# sphinx_gallery_thumbnail_path = 'pictures/thumb_number_of_axes.webp'

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from tutorial_data import FASHION_MISSING, options, output_folder, read_fashion

import bigpca as bp

BUNDLED = {"diabetes": load_diabetes, "breast cancer": load_breast_cancer, "iris": load_iris}
PRINTED = {"diabetes": (7, 8, 8), "breast cancer": (7, 10, 17), "iris": (2, 2, 3)}
SHARES = (0.90, 0.95, 0.99)


# %%
# For each data set and each share of the variance, the fit keeps the fewest components that capture the share.


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="of Fashion-MNIST")
    given = parser.parse_args(arguments)
    folder = output_folder(given.out)

    tables: dict[str, np.ndarray] = {name: load().data for name, load in BUNDLED.items()}
    fashion = read_fashion(given.fashion)
    if fashion is None:
        print(f"without Fashion-MNIST: {FASHION_MISSING}")
    else:
        tables["Fashion-MNIST"] = fashion[0][: given.rows]

    print(f"{'':15} {'rows':>7} {'columns':>8} {'90 %':>6} {'95 %':>6} {'99 %':>6}   tutorial")
    for name, table in tables.items():
        X = bp.ingest(table, folder / f"{name}.zarr", overwrite=True)
        axes = [bp.PCA(share, scale=True).fit(X).n_components_ for share in SHARES]
        counts = " ".join(f"{k:6}" for k in axes)
        print(f"{name:15} {len(X):7,} {X.shape[1]:8} {counts}   {PRINTED.get(name, '')}")
    print(f"\nstores: {folder}")


# %%
# Run it, with at most 2,000 rows of Fashion-MNIST when this page is built.
if __name__ == "__main__":
    main()
