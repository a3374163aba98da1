"""Writes genotypes as PLINK does: .bed, .bim and .fam."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def save_bed(
    path: Path, calls: np.ndarray, alleles: Sequence[tuple[str, str]] = (), positions: Sequence[int] = ()
) -> Path:
    """Write calls (n, m), copies of A1 or NaN; position j + 1 and A/G unless they are given."""
    n, m = calls.shape
    codes = np.zeros((m, -(-n // 4) * 4), "u1")
    codes[:, :n] = np.select([np.isnan(calls), calls == 2, calls == 1], [1, 0, 2], 3).T
    packed = (codes.reshape(m, -1, 4) << np.array([0, 2, 4, 6], "u1")).sum(axis=2).astype("u1")
    path.write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
    names = zip(positions or range(1, m + 1), alleles or [("A", "G")] * m, strict=True)
    path.with_suffix(".bim").write_text("".join(f"7\trs\t0\t{at}\t{a}\t{b}\n" for at, (a, b) in names))
    path.with_suffix(".fam").write_text("".join(f"F{i % 2} s{i} 0 0 0 -9\n" for i in range(n)))
    return path
