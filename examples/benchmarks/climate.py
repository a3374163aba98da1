"""EOFs of fields with land and weights by latitude: bigpca beside xeofs, patterns, variances and scores compared.

usage: python examples/benchmarks/climate.py [--directory DIR] [--days 4000] [--lat 90] [--lon 180] [--modes 10]
       [--rounds 3] [--only NAME ...]

Fields in memory (float64): sea surface temperatures of eofs, and air temperatures of iris-sample-data where that is
installed (pip install iris-sample-data). Then a generated field in float32, a fifth of it land, in a Zarr store that
both read by xr.open_zarr. xeofs takes solver="full" in memory, where bigpca's solvers are exact too, and its default
for Dask. Medians over the rounds of seconds, processor seconds, and the peak of memory over what it was before;
differences are relative to the largest value. Ends with one JSON line.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xarray as xr
from contenders import MIB, PeakMemory

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
    model = bp.PCA(k, scale=bp.CosLatitude("latitude")).fit(field)
    return model.to_xarray()["components"], model.explained_variance_, model.transform(field).compute()


def measured(
    fit: Callable[..., tuple[xr.DataArray, np.ndarray, xr.DataArray]], field: xr.DataArray, k: int, rounds: int
) -> tuple[tuple[xr.DataArray, np.ndarray, xr.DataArray], dict[str, float]]:
    """Return the result, and the medians of seconds, processor seconds, and memory over that before the fit."""
    rows = []
    for _ in range(rounds):
        with PeakMemory() as memory:
            cpu, began = time.process_time(), time.perf_counter()
            found = fit(field, k)
            rows.append((time.perf_counter() - began, time.process_time() - cpu))
        rows[-1] = (*rows[-1], (memory.peak - memory.baseline) / MIB)
    names = ("seconds", "cpu_seconds", "peak_mib")
    return found, {name: statistics.median(row[i] for row in rows) for i, name in enumerate(names)}


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
    fields = {
        name: field.astype("f8").assign_coords(latitude=field.latitude.astype("f8")) for name, field in in_memory()
    }
    store = generated(Path(given.directory), given.days, given.lat, given.lon)
    fields["generated"] = xr.open_zarr(store, consolidated=False)["t"]
    result = {}
    for name, field in fields.items():
        if given.only and name not in given.only:
            continue
        k, rounds = min(given.modes, *field.shape), given.rounds
        of_bigpca(field, 2), of_xeofs(field.isel(time=slice(4)).compute(), 2)  # imports, and files in the cache
        ours, own = measured(of_bigpca, field, k, rounds)
        theirs, other = measured(of_xeofs, field, k, rounds)
        result[name] = {"shape": list(field.shape), "bigpca": own, "xeofs": other, **differences(ours, theirs)}
        print(name, " x ".join(map(str, field.shape)), f"{float(ours[0][0].isnull().mean()):.1%} land, {k} modes")
        for who, row in (("bigpca", own), ("xeofs", other)):
            numbers = f"{row['seconds']:9.3f} s {row['cpu_seconds']:9.3f} s of processors {row['peak_mib']:9.0f} MiB"
            print(f"  {who:8}{numbers}")
        shown = ", ".join(f"{what} {result[name][what]:.1e}" for what in ("variances", "patterns", "scores"))
        print(f"  largest differences: {shown}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
