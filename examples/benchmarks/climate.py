"""EOFs of fields with land and weights by latitude: bigpca beside xeofs, patterns, variances and scores compared.

usage: python examples/benchmarks/climate.py [--directory DIR] [--days 4000] [--lat 90] [--lon 180] [--modes 10]
       [--rounds 3] [--only NAME ...]

Fields in memory (float64): sea surface temperatures of eofs, and air temperatures of iris-sample-data where that is
installed (pip install iris-sample-data). Then a generated field in float32, a fifth of it land, in a Zarr store that
both read by xr.open_zarr. xeofs takes solver="full" in memory, where bigpca's solvers are exact too, and its default
for Dask. Every fit, with its scores, is measured in a process of its own, in turn: medians over the rounds of seconds,
processor seconds, and the peak of memory over what the process held before, with both the field and the library loaded
(a field in a store is not). Differences are relative to the largest value. Ends with one JSON line.
"""

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xarray as xr
from contenders import run_apart, timed

import bigpca as bp

warnings.filterwarnings("ignore", category=FutureWarning)  # of xeofs' imports and indexes


def in_memory() -> Iterator[tuple[str, xr.DataArray]]:
    """Yield the fields that other libraries install."""
    import eofs

    yield "sst", xr.open_dataset(Path(eofs.__file__).parent / "examples/example_data/sst_ndjfm_anom.nc")["sst"]
    try:
        import iris_sample_data
    except ImportError:
        return
    for name in ("A1B_north_america", "E1_north_america"):
        path = Path(iris_sample_data.path) / f"{name}.nc"
        yield name, xr.open_dataset(path, decode_times=False)["air_temperature"]


def generated(folder: Path, days: int, lat: int, lon: int) -> Path:
    """Write a field of a few waves and noise, in chunks of 50 days, and return the path of its store."""
    path = folder / f"field-{days}x{lat}x{lon}.zarr"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    coords = {"latitude": np.linspace(-88.0, 88.0, lat), "longitude": np.linspace(0.0, 359.0, lon)}
    waves = rng.standard_normal((12, lat * lon)).cumsum(axis=1).astype("f4") / np.sqrt(lat * lon)
    land = rng.random((lat, lon)) < 0.2
    for start in range(0, days, 50):
        n = min(50, days - start)
        rows = rng.standard_normal((n, 12)).astype("f4") * 0.8 ** np.arange(12, dtype="f4") @ waves
        rows = (rows + 0.2 * rng.standard_normal(rows.shape, np.float32)).reshape(n, lat, lon)
        part = xr.DataArray(np.where(land, np.nan, rows + 280).astype("f4"), dims=("time", *coords), coords=coords)
        part = part.assign_coords(time=np.arange(start, start + n)).to_dataset(name="t").chunk(time=50)
        part.to_zarr(path, **({"mode": "w"} if start == 0 else {"append_dim": "time"}), consolidated=False)
    return path


def of_xeofs(field: xr.DataArray, k: int) -> tuple[xr.DataArray, np.ndarray, xr.DataArray]:
    """Return patterns, variances and scores."""
    from xeofs.single import EOF

    solver = "full" if field.chunks is None else "auto"
    model = EOF(n_modes=k, use_coslat=True, solver=solver, random_state=0).fit(field, dim="time")
    patterns = model.components().rename(mode="component")
    scores = model.scores(normalized=False).rename(mode="component").transpose("time", "component")
    return patterns.compute(), model.explained_variance().values, scores.compute()


def of_bigpca(field: xr.DataArray, k: int) -> tuple[xr.DataArray, np.ndarray, xr.DataArray]:
    """Return the same."""
    model = bp.PCA(k, scale=bp.scales.CosLatitude("latitude")).fit(field)
    numbers = {"component": np.arange(1, k + 1)}  # xeofs numbers its modes, where ours have names
    patterns = model.to_xarray()["components"].assign_coords(numbers)
    return patterns, model.explained_variance_, model.transform(field).assign_coords(numbers).compute()


CONTENDERS = {"bigpca": of_bigpca, "xeofs": of_xeofs}


def fields(store: Path) -> dict[str, xr.DataArray]:
    """Return the fields by name, the last from the store."""
    found = {
        name: field.astype("f8").assign_coords(latitude=field.latitude.astype("f8")) for name, field in in_memory()
    }
    return found | {"generated": xr.open_zarr(store, consolidated=False)["t"]}


def one() -> None:
    """Measure one contender on one field, and print its row."""
    name, store, k, field = sys.argv[1:]
    given = fields(Path(store))[field.removeprefix("field=")]
    coords = {"time": np.arange(9), "latitude": [-30.0, 0.0, 30.0], "longitude": np.arange(4.0)}
    small = xr.DataArray(np.random.default_rng(0).random((9, 3, 4)), coords, list(coords))
    CONTENDERS[name](small if given.chunks is None else small.chunk(time=3), 2)  # imports
    row = timed(lambda: CONTENDERS[name](given, int(k))[1])
    del row["eigenvalues"]
    print(json.dumps(row))


def differences(ours: tuple[xr.DataArray, ...], theirs: tuple[xr.DataArray, ...]) -> dict[str, float]:
    """Return the largest differences, up to signs; patterns of land must be NaN in both."""
    patterns, other = xr.align(ours[0], theirs[0].transpose(*ours[0].dims), join="exact")
    signs = np.sign((patterns * other).sum(patterns.dims[1:]))
    assert (patterns.isnull() == other.isnull()).all()
    pairs = {"patterns": (patterns * signs, other), "scores": (ours[2] * signs, theirs[2])}
    found = {name: float(abs(a - b).max() / abs(b).max()) for name, (a, b) in pairs.items()}
    return {"variances": float(np.max(np.abs(ours[1] / theirs[1] - 1))), **found}


def main() -> None:
    """Compare both on every field, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--days", type=int, default=4_000)
    parser.add_argument("--lat", type=int, default=90)
    parser.add_argument("--lon", type=int, default=180)
    parser.add_argument("--modes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of fields")
    given = parser.parse_args()
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    store = generated(Path(given.directory), given.days, given.lat, given.lon)
    result = {}
    for name, field in fields(store).items():
        if given.only and name not in given.only:
            continue
        k = min(given.modes, *field.shape)
        ours, theirs = of_bigpca(field, k), of_xeofs(field, k)
        found = differences(ours, theirs)
        land = float(ours[0][0].isnull().mean())
        print(name, " x ".join(map(str, field.shape)), f"{land:.1%} land, {k} modes; largest differences:", end=" ")
        print(", ".join(f"{what} {value:.1e}" for what, value in found.items()), flush=True)
        runs: dict[str, list[dict[str, float]]] = {who: [] for who in CONTENDERS}
        for _ in range(given.rounds):
            for who, rows in runs.items():
                rows.append(run_apart(f"{who} field={name}", store, k, script=__file__))
                print(f"  {who:8}{rows[-1]}", flush=True)
        medians = {
            who: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            for who, rows in runs.items()
            if rows
        }
        result[name] = {"shape": list(field.shape), **medians, **found}
    print(json.dumps(result))


if __name__ == "__main__":
    one() if sys.argv[1:2] and sys.argv[1] in CONTENDERS else main()
