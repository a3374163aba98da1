"""Genotypes of PLINK: counts of the first allele, 0 to 2, of samples (rows) at variants (columns), NaN where missing.

A .bed file stores variant by variant, two bits a call, so all rows of some columns are read at once, but not some rows
of all columns. A .pgen file (PLINK 2) is read by ``pgenlib``, in the same way. Names of columns are
``chrom:pos:A1:A2``, where A1 is the allele that is counted.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import decoding, regular_chunks
from bigpca.data.flat_files import SHORT_RUN, STEP_BYTES, check_whole, raw_file
from bigpca.data.source import Source, Stamp, file_stamp
from bigpca.errors import CorruptedChunkError, brief, counted, required, warn_caller
from bigpca.storage.files import check_regular, open_regular

MAGIC, BY_SAMPLE = b"\x6c\x1b\x01", b"\x6c\x1b\x00"
CALLS = np.array([2, np.nan, 1, 0], np.float32)  # of the codes 00, 01, 10 and 11: copies of A1
TABLE = CALLS[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]  # (256, 4): the low bits of a byte come first
CHUNK_BYTES = 128 * 2**20  # of rows that are read at once: each such read goes through the file
COLUMNS_BYTES = 2**20  # of all rows of columns that are read at once
PAGE = 4 * 4096  # calls of a page, less than which is not read of a variant
OTHER_STRAND = str.maketrans("ACGT", "TGCA")

log = logging.getLogger("bigpca")


@dataclass(frozen=True, eq=False, repr=False)
class GenotypeRows(Source):
    """Calls of a file beside which others name variants and samples."""

    gives_rows: ClassVar[bool] = True
    beside: ClassVar[tuple[str, str]]  # ends of the files of variants and of samples

    def facts(self) -> dict[str, Any]:
        """float32 has NaN for missing calls. A read of some samples goes through the calls of others: of all, unless a
        variant has many pages.
        """
        n, d = max(1, self.shape[0]), self.shape[1]
        rows, across = n if n <= 4 * SHORT_RUN else PAGE, max(1, min(d // 2, COLUMNS_BYTES // (4 * n)))
        return {"dtype": np.dtype(np.float32), "decoded_rows": rows, "reach": rows, "column_chunk": across}

    def row_chunks(self) -> tuple[int, ...]:
        """As many rows as may be in memory at once."""
        n, d = self.shape
        return regular_chunks(n, max(4, CHUNK_BYTES // (4 * max(1, d)) // 4 * 4))

    def stamps(self, start: int, stop: int) -> list[Stamp]:
        """Return those of all three files."""
        return [file_stamp(self.path), *map(file_stamp, _files_beside(self.path, self.beside))]

    @property
    def column_names(self) -> list[str]:
        """``chrom:pos:A1:A2``."""
        return list(_variants(file_stamp(_files_beside(self.path, self.beside)[0])))

    def texts(self) -> NDArray[np.str_]:
        """Return the IID of each sample; with its family, FID:IID, if some IID have several samples."""
        return np.array(_samples(file_stamp(_files_beside(self.path, self.beside)[1])), np.str_)

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> NDArray[np.float32]:
        """Read variant by variant, about 1 MiB at a time."""
        block = np.empty((stop - start, columns[1] - columns[0]), np.float32)
        step = max(1, STEP_BYTES // (4 * max(1, stop - start)))
        for i in range(*columns, step):
            last = min(i + step, columns[1])
            block[:, i - columns[0] : last - columns[0]] = self.calls((i, last), start, stop).T
        return block

    @abstractmethod
    def calls(self, variants: tuple[int, int], start: int, stop: int) -> NDArray[np.float32]:
        """Read calls of samples ``start:stop`` at a range of variants, (variants, samples)."""


@dataclass(frozen=True, eq=False, repr=False)
class BedRows(GenotypeRows):
    """Calls of a .bed file of PLINK 1."""

    beside = (".bim", ".fam")
    format: str = field(default="bed", kw_only=True)

    @classmethod
    def of(cls, path: str, member: str | None) -> BedRows:
        """Describe a file by its first bytes, its size, and the lines of the files beside it.

        Raises
        ------
        FileNotFoundError
            If one of the three files does not exist.
        ValueError
            For files that are not .bed of PLINK 1, and those that store sample by sample.
        CorruptedChunkError
            For another size than that of so many calls.
        """
        check_whole(path, member)
        with open_regular(path) as file:
            head = file.read(3)
        if head == BY_SAMPLE:
            raise ValueError(
                f"{path} stores sample by sample (its first bytes are 6c 1b 00), as PLINK wrote before 2008. Variant "
                "by variant (6c 1b 01) was expected. Rewrite it: plink --bfile NAME --make-bed --out NEW."
            )
        if head != MAGIC:
            raise ValueError(
                f"{path} begins with {head.hex(' ') or 'nothing'}, but a .bed file of PLINK with 6c 1b 01. Intervals "
                "(UCSC BED) are not rows of numbers; pass genotypes."
            )
        variants, samples = (file_stamp(one) for one in _files_beside(path, cls.beside))
        shape = n, m = len(_samples(samples)), len(_variants(variants))
        size, expected = check_regular(path).st_size, 3 + m * -(-n // 4)
        if size != expected:
            raise CorruptedChunkError(
                f"{path} has {size:,} bytes, but {n:,} samples (.fam) at {m:,} variants (.bim) have 3 + {m:,} x "
                f"{-(-n // 4):,} = {expected:,}. Copy the three files again, or pass those of one run of PLINK."
            )
        return cls(shape, path=path)

    def calls(self, variants: tuple[int, int], start: int, stop: int) -> NDArray[np.float32]:
        n, m = self.array_shape
        stored = raw_file(self.path, 3, (m, -(-n // 4)), "u1")
        codes = stored.read_block(*variants, (start // 4, -(-stop // 4)))
        found: NDArray[np.float32] = TABLE[codes].reshape(len(codes), -1)
        return found[:, start % 4 : start % 4 + stop - start]


@dataclass(frozen=True, eq=False, repr=False)
class PgenRows(GenotypeRows):
    """Hard calls of a .pgen file of PLINK 2: copies of ALT, which is A1."""

    beside = (".pvar", ".psam")
    format: str = field(default="pgen", kw_only=True)

    @classmethod
    def of(cls, path: str, member: str | None) -> PgenRows:
        """Describe a file by what ``pgenlib`` and the files beside it say; raises as :meth:`BedRows.of`."""
        check_whole(path, member)
        variants, samples = (file_stamp(one) for one in _files_beside(path, cls.beside))
        shape = len(_samples(samples)), len(_variants(variants))
        with _pgen(path) as file:
            found = file.get_raw_sample_ct(), file.get_variant_ct()
        if found != shape:
            raise CorruptedChunkError(
                f"{path} has {found[0]:,} samples and {found[1]:,} variants, but .psam and .pvar have {shape[0]:,} and "
                f"{shape[1]:,} lines. Copy the three files again, or pass those of one run of PLINK."
            )
        return cls(shape, path=path)

    def calls(self, variants: tuple[int, int], start: int, stop: int) -> NDArray[np.float32]:
        codes = np.empty((variants[1] - variants[0], self.array_shape[0]), np.int8)
        with (
            _pgen(self.path) as file,
            decoding(f"{self.path} cannot be decoded", "Copy it again.", errors=(Exception,)),
        ):
            file.read_range(*variants, codes)
        found = codes[:, start:stop].astype(np.float32)
        found[found < 0] = np.nan  # -9
        return found


def _pgen(path: str) -> Any:
    return required("pgenlib", path, "pgenlib").PgenReader(os.fsencode(path))


def _files_beside(path: str, ends: tuple[str, str]) -> list[str]:
    """Return the paths of the files of variants and samples."""
    found = [os.path.splitext(path)[0] + end for end in ends]
    for one in found:
        if not os.path.isfile(one):
            raise FileNotFoundError(f"{one} does not exist, but names what is in {path}. Put it beside that file.")
    return found


@lru_cache(maxsize=4)
def _variants(stamp: Stamp) -> tuple[str, ...]:
    """Return the names of the variants of a file in one state: of the columns CHROM, POS, ALT and REF, or of .bim."""
    return tuple(map(":".join, _fields(stamp[0], ("CHROM", "POS", "ALT", "REF"), (0, 3, 4, 5))))


@lru_cache(maxsize=4)
def _samples(stamp: Stamp) -> tuple[str, ...]:
    """Return the IID of the samples of a file in one state, or FID:IID where an IID has several samples."""
    found = list(_fields(stamp[0], ("FID", "IID"), (0, 1)))
    alone = tuple(iid for _, iid in found)
    return alone if len(set(alone)) == len(alone) else tuple(map(":".join, found))


def _fields(path: str, names: tuple[str, ...], usual: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    """Yield columns of a text file: those that its header names, "0" for others, or the usual ones without a header."""
    places: list[int | None] = [*usual]
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            parts = line.split()
            if line.startswith("#"):
                header = [name.lstrip("#") for name in parts]
                places = [header.index(name) if name in header else None for name in names]
            elif parts and len(parts) <= max(place or 0 for place in places):
                raise ValueError(
                    f"line {number} of {path} has {len(parts)} columns, {brief(line.strip())}; those of "
                    f"{', '.join(names)} were expected. Pass the files as PLINK wrote them."
                )
            elif parts:
                yield tuple("0" if place is None else parts[place] for place in places)


class Matched(NamedTuple):
    """Where the variants of a model are in other genotypes, and which of them count the other allele there."""

    places: NDArray[np.int64]
    swapped: NDArray[np.bool_]


def match_alleles(known: Sequence[str], names: Sequence[str], model: str) -> Matched:
    """Find variants by chromosome, position and alleles: as they are named, swapped, or on the other strand.

    Of A/T and C/G, the other strand has the same alleles as swapped ones: these are matched as they are named.

    Raises
    ------
    ValueError
        For variants of the model that are not there, or there twice.

    Warns
    -----
    UserWarning
        With the numbers of those on the other strand, and of A/T and C/G, whose strand is not known.
    """
    there: dict[str, int] = {}
    twice = {name for i, name in enumerate(names) if there.setdefault(name, i) != i}
    places, swapped = np.full(len(known), -1, np.int64), np.zeros(len(known), bool)
    flipped = ambiguous = 0
    for i, name in enumerate(known):
        site, first, second = name.rsplit(":", 2)
        other = [one.translate(OTHER_STRAND) for one in (first, second)]
        same = other == [second, first]
        pairs = [(first, second), (second, first)]
        pairs += [] if same or len(first + second) > 2 else [(other[0], other[1]), (other[1], other[0])]
        ways = [f"{site}:{a}:{b}" for a, b in pairs]
        how = next((k for k, one in enumerate(ways) if one in there), None)
        if how is None:
            continue
        if ways[how] in twice:
            raise ValueError(
                f"{brief(ways[how])} names several variants of X, and {model} was fitted on one. Leave out the others."
            )
        places[i], swapped[i] = there[ways[how]], how % 2
        flipped, ambiguous = flipped + (how > 1), ambiguous + same
    absent = np.flatnonzero(places < 0)
    if len(absent):
        raise ValueError(
            f"X lacks {len(absent):,} of the {counted(len(known), 'variant')} that {model} was fitted on, such as "
            f"{brief(known[absent[0]])}. Fit the variants that both have: bp.open(path, columns=[...])."
        )
    told = (
        f"X counts the other allele of {swapped.sum():,} of {counted(len(known), 'variant')}, so 2 - x is used. It has "
        f"{flipped:,} on the other strand. {ambiguous:,} are A/T or C/G, whose strand the alleles do not show: they "
        "are matched as they are named."
    )
    if flipped or ambiguous:
        warn_caller(told, UserWarning)
    else:
        log.info(told)
    return Matched(places, swapped)
