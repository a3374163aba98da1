"""Genotypes in the files of PLINK, beside bed-reader, pgenlib and arrays in memory."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import bigpca as bp
import bigpca.dask_array as da
from bigpca.data import genotypes
from tests.data.plink_files import save_bed

RNG = np.random.default_rng(0)
N, D = 41, 300
SHARES = np.clip(RNG.uniform(0.1, 0.9, D) + 0.3 * (np.arange(N) % 3 - 1)[:, None] * RNG.random(D), 0.02, 0.98)
CALLS = RNG.binomial(2, SHARES).astype("f4")
HOLED = np.where(RNG.random((N, D)) < 0.05, np.nan, CALLS).astype("f4")
quiet = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
PATTERSON = bp.scales.Patterson()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 41])
def test_calls_are_the_copies_of_a1_of_each_sample(n: int, tmp_path: Path) -> None:
    rows = bp.open(save_bed(tmp_path / "x.bed", HOLED[:n]))
    np.testing.assert_array_equal(rows.compute(), HOLED[:n])
    np.testing.assert_array_equal(rows[1:, 7:90].compute(), HOLED[1:n, 7:90])
    np.testing.assert_array_equal(rows[[0], ::9].compute(), HOLED[:1, ::9])


def test_bed_reader_reads_the_same(tmp_path: Path) -> None:
    reader = pytest.importorskip("bed_reader")
    reader.to_bed(tmp_path / "x.bed", HOLED, properties={"sid": [f"rs{i}" for i in range(D)]})
    np.testing.assert_array_equal(bp.open(tmp_path / "x.bed").compute(), HOLED)
    save_bed(tmp_path / "y.bed", HOLED)
    np.testing.assert_array_equal(reader.open_bed(tmp_path / "y.bed").read(), HOLED)


@pytest.mark.parametrize("header", [True, False])
def test_pgenlib_reads_hard_calls_at_the_same_columns(header: bool, tmp_path: Path) -> None:
    library, bed, path = pytest.importorskip("pgenlib"), save_bed(tmp_path / "x.bed", HOLED), tmp_path / "x.pgen"
    codes = np.nan_to_num(HOLED, nan=-9).astype("i1").T
    with library.PgenWriter(str(path).encode(), N, D, nonref_flags=False) as writer:
        for variant in codes:
            writer.append_biallelic(np.ascontiguousarray(variant))
    if header:
        lines = "".join(f"7\t{j + 1}\trs\tG\tA\n" for j in range(D))
        path.with_suffix(".pvar").write_text(f"##source=x\n#CHROM\tPOS\tID\tREF\tALT\n{lines}")
        path.with_suffix(".psam").write_text("#IID\tSEX\n" + "".join(f"s{i}\t1\n" for i in range(N)))
    else:
        bed.with_suffix(".bim").rename(path.with_suffix(".pvar"))
        bed.with_suffix(".fam").rename(path.with_suffix(".psam"))
    rows = bp.open(path)
    np.testing.assert_array_equal(rows.compute(), HOLED)
    assert bp.data.stored_keys(path).tolist() == [f"s{i}" for i in range(N)]
    assert bp.PCA(2, nan_policy="omit").fit(rows[:, :3]).n_features_in_ == 3
    path.with_suffix(".psam").write_text("#IID\ns0\n")
    with pytest.raises(
        bp.errors.CorruptedChunkError, match=r"41 samples and 300 variants, but .psam and .pvar have 1 "
    ):
        bp.open(path)


@quiet
@pytest.mark.parametrize("solver", ["dot", "krylov", "covariance"])
@pytest.mark.parametrize("scale", [False, PATTERSON], ids=["plain", "Patterson"])
def test_fits_of_a_file_are_those_of_its_calls(solver: str, scale: Any, tmp_path: Path) -> None:
    path = save_bed(tmp_path / "x.bed", HOLED)
    options: dict[str, Any] = {"tol": 1e-9} if solver == "krylov" else {}
    model = bp.PCA(3, solver=solver, scale=scale, nan_policy="mean", **options).fit(path)
    plain = bp.PCA(3, solver="covariance", scale=scale, nan_policy="mean").fit(HOLED)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(np.abs(model.transform(path)), np.abs(plain.transform(HOLED)), atol=1e-4)
    assert model.feature_names_in_[[0, -1]].tolist() == ["7:1:A:G", "7:300:A:G"]


def test_a_dot_matrix_reads_the_variants_once_and_rows_are_read_as_often_as_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_bed(tmp_path / "x.bed", HOLED)
    plan = bp.PCA(3, solver="dot", nan_policy="mean").plan(path)
    assert "one read over column blocks" in str(plan)
    assert plan.passes == 3  # the means, the products, and the components
    monkeypatch.setattr(genotypes, "CHUNK_BYTES", 8 * 4 * D)
    read = list[int]()
    calls = genotypes.BedRows.calls
    monkeypatch.setattr(
        genotypes.BedRows, "calls", lambda self, *given: read.append(given[0][1] - given[0][0]) or calls(self, *given)
    )
    model = bp.PCA(3, solver="covariance", scale=PATTERSON)
    path = save_bed(path, CALLS)
    passes = model.plan(path).passes
    read.clear()
    assert model.fit(path).n_samples_ == N
    assert sum(read) == passes * D > D


@quiet
def test_missing_values_of_stores_chunked_in_columns_are_filled_block_by_block(tmp_path: Path) -> None:
    values = HOLED.astype("f8") + 1e6
    store = zarr.create_array(tmp_path / "x.zarr", shape=(N, D), chunks=(N, 30), dtype="f8")
    store[:] = values
    weights = np.arange(N) % 3.0
    model = bp.PCA(3, solver="dot", nan_policy="mean")
    assert "column blocks" in str(model.plan(store))
    plain = bp.PCA(3, solver="covariance", nan_policy="mean")
    for given in (None, weights):
        found, expected = (one.fit(X, sample_weight=given) for one, X in ((model, store), (plain, values)))
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-7)
        np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-15)
    store[:, 4], store[3, 7] = np.nan, np.inf
    with pytest.raises(bp.errors.NonFiniteError, match="inf"):
        model.fit(store)
    store[3, 7] = 0
    with pytest.raises(ValueError, match="1 of 300 columns have no value in any row"):
        model.fit(store)


def test_samples_are_named_by_iid_and_by_their_family_where_these_repeat(tmp_path: Path) -> None:
    path = save_bed(tmp_path / "x.bed", CALLS)
    assert bp.data.stored_keys(path)[:2].tolist() == ["s0", "s1"]
    path.with_suffix(".fam").write_text("".join(f"F{i // 2} {i % 2} 0 0 0 -9\n" for i in range(N)))
    assert bp.data.stored_keys(bp.open(path))[:3].tolist() == ["F0:0", "F0:1", "F1:0"]


ALLELES = [("A", "G"), ("A", "T"), ("C", "G"), ("C", "A"), ("TA", "T"), ("T", "C")] * (D // 6)
STRAND = str.maketrans("ACGT", "TGCA")


def elsewhere(path: Path, *, flips: bool) -> Path:
    """The same calls in another order, some as copies of the other allele or of that on the other strand."""
    order, calls, alleles = RNG.permutation(D), HOLED.copy(), list(ALLELES)
    for j in range(D):
        a, b = alleles[j]
        if j % 3 == 0:
            a, b, calls[:, j] = b, a, 2 - calls[:, j]
        if flips and j % 6 in (0, 3, 5) and j % 4 == 0:
            a, b = a.translate(STRAND), b.translate(STRAND)
        alleles[j] = (a, b)
    return save_bed(path, calls[:, order], [alleles[j] for j in order], (order + 1).tolist())


@quiet
def test_a_model_finds_its_variants_by_place_and_alleles(tmp_path: Path) -> None:
    own = save_bed(tmp_path / "x.bed", HOLED, ALLELES)
    model = bp.PCA(3, scale=PATTERSON, nan_policy="mean").fit(own)
    model.save(tmp_path / "m")
    message = r"the other allele of 100 of 300 variants.* 25 on the other strand. 100 are A/T or C/G"
    other = elsewhere(tmp_path / "y.bed", flips=True)
    for one in (model, bp.load(tmp_path / "m")):
        with pytest.warns(UserWarning, match=message):
            found = one.transform(other)
        np.testing.assert_array_equal(found, one.transform(own))
        rows = bp.open(other)
        for taken, places in ((rows[5:20], slice(5, 20)), (rows[[7, 3]], [7, 3]), (rows[:, ::-1], slice(None))):
            with pytest.warns(UserWarning, match=message):
                part = one.transform(taken)
            np.testing.assert_allclose(part, np.asarray(found)[places], rtol=1e-5, atol=1e-5)
        with pytest.raises(ValueError, match="whose columns have different names were joined: '7:1:A:G' and"):
            one.transform(da.concatenate([bp.open(own), rows]))
        np.testing.assert_allclose(one.transform(bp.open(own)[3:9]), one.transform(own)[3:9], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"X lacks 299 of the 300 variants .*, such as 7:2:A:T"):
        model.transform(save_bed(tmp_path / "z.bed", HOLED[:, :1], ALLELES[:1]))
    with pytest.raises(ValueError, match="feature names"):
        bp.PCA(1, nan_policy="omit").fit(pd.DataFrame(CALLS, columns=[f"c:{i}" for i in range(D)])).transform(own)
    doubled = np.hstack([HOLED, HOLED[:, :1]])
    twice = save_bed(tmp_path / "z.bed", doubled, [*ALLELES, ALLELES[0]], [*range(1, D + 1), 1])
    with pytest.raises(ValueError, match="7:1:A:G names several variants of X, and PCA was fitted on one"):
        model.transform(twice)


@quiet
def test_variants_that_are_only_swapped_are_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.data.test_genotype_files.ALLELES", [("A", "G")] * D)
    model = bp.PCA(3, nan_policy="mean").fit(save_bed(tmp_path / "x.bed", HOLED))
    with caplog.at_level(logging.INFO, "bigpca"):
        found = model.transform(elsewhere(tmp_path / "y.bed", flips=False))
    assert "the other allele of 100 of 300 variants, so 2 - x is used" in caplog.text
    np.testing.assert_allclose(found, model.transform(tmp_path / "x.bed"), atol=1e-4)


WRONG: dict[str, tuple[Any, str]] = {
    "by sample": (lambda p: p.write_bytes(b"\x6c\x1b\x00" + p.read_bytes()[3:]), "stores sample by sample"),
    "intervals": (lambda p: p.write_text("chr1\t0\t9\n"), r"begins with 63 68 72, but .* Intervals \(UCSC BED\)"),
    "empty": (lambda p: p.write_bytes(b""), "begins with nothing"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-1]), r"has 3,302 bytes, but .* 3 \+ 300 x 11 = 3,303"),
    "longer": (lambda p: p.write_bytes(p.read_bytes() + b"0"), "has 3,304 bytes"),
    "no .bim": (lambda p: p.with_suffix(".bim").unlink(), "x.bim does not exist, but names what is in"),
    "no .fam": (lambda p: p.with_suffix(".fam").unlink(), "x.fam does not exist"),
    "another .bim": (lambda p: p.with_suffix(".bim").write_text("7 rs 0 1 A\n"), "line 1 of .*x.bim has 5 columns"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_not_those_of_plink_are_rejected(name: str, tmp_path: Path) -> None:
    path, (change, message) = save_bed(tmp_path / "x.bed", CALLS), WRONG[name]
    change(path)
    with pytest.raises((ValueError, OSError, bp.errors.CorruptedChunkError), match=message):
        bp.open(path)


def test_a_file_is_one_array_and_notices_changes(tmp_path: Path) -> None:
    rows = bp.open(path := save_bed(tmp_path / "x.bed", CALLS))
    with pytest.raises(ValueError, match="is one array, so it has no member 'x'"):
        bp.open(path, member="x")
    path.with_suffix(".fam").write_text(path.with_suffix(".fam").read_text().replace("s0 ", "other "))
    with pytest.raises(bp.errors.InputChangedError):
        rows.compute()
