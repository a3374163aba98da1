"""Recall of neighbours by scores, by codes of one byte and of one bit, and by FAISS, on features of a network.

usage: python examples/benchmarks/codes.py [--rows N] [--queries Q] [-k K ...] [--metric euclidean|cosine]

The features are the last of MobileNetV2 (1,280 numbers) for test images of Fashion-MNIST, where both are installed, and
else patches of two photographs (768 numbers). No query is among the rows. Prints a table, and one JSON line.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_sample_images

import bigpca as bp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tutorial_data import network_features, read_fashion

BATCH = 200


def features(rows: int, fashion: Path) -> tuple[str, np.ndarray]:
    """Return what the features are, and at most so many rows of them."""
    images, network = read_fashion(fashion, "t10k"), network_features((28, 28), 96, pooled=True)
    if images is not None and network is not None:
        chosen = images[0][:rows]
        parts = [network(chosen[i : i + BATCH]) for i in range(0, len(chosen), BATCH)]
        return "MobileNetV2 of Fashion-MNIST", np.concatenate(parts)
    views = [sliding_window_view(one, (16, 16), axis=(0, 1))[::8, ::8] for one in load_sample_images().images]
    patches = np.concatenate([view.reshape(-1, 768) for view in views]).astype("float32")
    return "patches of two photographs", patches[np.random.default_rng(0).permutation(len(patches))[:rows]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=250)
    parser.add_argument("-k", type=int, nargs="+", default=[32, 64, 128, 192])
    parser.add_argument("--metric", default="euclidean")
    parser.add_argument("--fashion", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()
    what, whole = features(options.rows, options.fashion)
    queries, X = whole[: options.queries], whole[options.queries :]
    print(f"{what}: {X.shape[0]:,} rows of {X.shape[1]:,}, {len(queries)} queries, recall@10, {options.metric}")
    print("components  bytes  scores   int8   bits  FAISS")
    found = []
    for k in options.k:
        model = bp.PCA(k).fit(X)
        one = bp.quality.recall(model, queries, X, metric=options.metric)
        index = model.to_faiss(dtype="int8")
        index.add(X)
        answers = index.search(queries, 10)[1]
        faiss = np.mean([np.isin(a, b).mean() for a, b in zip(one.neighbours, answers, strict=True)])
        print(f"{k:10}  {k:5}  {one.scores:6.3f} {one.int8:6.3f} {one.bits:6.3f} {faiss:6.3f}")
        found.append({"k": k, "scores": one.scores, "int8": one.int8, "bits": one.bits, "faiss": float(faiss)})
    print(json.dumps({"features": what, "rows": len(X), "metric": options.metric, "recall": found}))


if __name__ == "__main__":
    main()
