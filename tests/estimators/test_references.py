"""Recorded numbers of other packages for rows that a formula makes: methods of pairs, lags and tables equal them.

The packages: deeptime 0.4.5, sklearn-sfa 0.1.6, spectral 0.24, xeofs 3.0.6 (``solver="full"``), prince 0.23.0
(``n_iter=50``), ikpls 6.1.2 (algorithm 2) and contrastive 1.2.0 (``standardize=False``).
"""

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.data import lagged

Array = NDArray[Any]


def made(n: int, d: int) -> Array:
    """Slow columns, noise, and noise that neighbours share."""
    t, j = np.arange(n)[:, None] + 1.0, np.arange(d) + 1.0
    noise = np.modf(np.sin(t * (12.9898 + 78.233 * j)) * 43.7585453)[0]
    return (np.sin(t / (11 * j)) + np.cos(t / 37 + j)) / j + noise + 0.3 * np.roll(noise, 1, axis=1)


X = made(240, 5)
ROWS = da.from_array(X, chunks=(50, 5))
TARGETS = np.roll(made(240, 6)[:, 3:5], 2, axis=0)
TABLE = np.floor(40 * np.abs(made(60, 5))) + 1
OF_INTEREST = np.arange(240) < 150

RECORDED: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "deeptime TICA": (
        lambda: bp.TICA(3, lag=1).fit(ROWS).eigenvalues_, [0.8289897450539018, 0.651795195371464, -0.4627135239195146]
    ),
    "deeptime TICA, timescales": (
        lambda: np.stack([bp.TICA(3, lag=lag).fit(ROWS).timescales_ for lag in (1, 7)]),
        [[5.331982729765332, 2.336312764856701, 1.2976107070731728],
         [21.03984168427343, 15.669799806496188, 8.885967316637839]],
    ),
    "deeptime VAMP": (
        lambda: bp.CCA(3, scale=False).fit(ROWS[:-7], ROWS[7:]).correlations_,
        [0.7237871667580885, 0.643807227207824, 0.46072704625749045],
    ),
    "sklearn-sfa": (
        lambda: bp.SlowFeatureAnalysis().fit(ROWS).eigenvalues_,
        [0.3401437585931346, 0.6986206217753149, 1.3100787211155929, 2.351614181178896, 2.934404200550791],
    ),
    "spectral mnf": (
        lambda: bp.MinimumNoiseFraction(width=10).fit(ROWS).eigenvalues_,
        [2.3785714378337373, 1.4325842595449993, 0.7664350554861196, 0.7106802678573028, 0.620851160960713],
    ),
    **{
        f"xeofs ExtendedEOF, {solver}": (
            lambda solver=solver: bp.PCA(3, solver=solver, tol=1e-12).fit(lagged(ROWS, range(0, 24, 4)))
            .explained_variance_,
            [7.564490761327005, 1.9573634859460247, 1.7689996526422576],
        )
        for solver in ("covariance", "krylov", "dot")
    },
    "prince, inertias": (
        lambda: bp.CorrespondenceAnalysis(3).fit(TABLE).eigenvalues_,
        [0.1380186071574765, 0.07643297021928776, 0.05873174179425751],
    ),
    "prince, inertia": (lambda: bp.CorrespondenceAnalysis(3).fit(TABLE).total_inertia_, 0.32368333461300264),
    "prince, rows": (
        lambda: np.abs(bp.CorrespondenceAnalysis(3).fit(TABLE).transform(TABLE[:2])),
        [[0.06725544085652319, 0.08363058405686045, 0.21202405884134828],
         [0.3267329257957216, 0.2182909989433054, 0.2593510323579519]],
    ),
    "prince, columns": (
        lambda: np.abs(bp.CorrespondenceAnalysis(3).fit(TABLE).column_coordinates_[:2]),
        [[0.5192433821482243, 0.11676087415976907, 0.00469041771033164],
         [0.33758040689422425, 0.14634666588291195, 0.45226465612758987]],
    ),
    "ikpls, predictions": (
        lambda: bp.PLSRegression(3).fit(ROWS, TARGETS).predict(X[:2]),
        [[0.08573408678478776, -0.07339253214893693], [-0.30376067870814105, 0.1329815861339322]],
    ),
    "ikpls, coefficients": (
        lambda: bp.PLSRegression(3, scale=False).fit(ROWS, TARGETS).coef_[:, :2],
        [[-0.14738417858454525, -0.10118489634132524], [-0.13971881430505037, 0.07555617484019758]],
    ),
    "contrastive": (
        lambda: np.abs(bp.ContrastivePCA(2, alpha=1.5, background=False).fit(ROWS, OF_INTEREST).transform(X[:2])),
        [[0.7956398107039667, 0.6498671064068655], [1.7664592284808454, 0.47150360710906253]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_methods_give_the_recorded_numbers_of_other_packages(name: str) -> None:
    found, expected = RECORDED[name]
    np.testing.assert_allclose(found(), expected, rtol=0, atol=1e-12 * np.abs(expected).max())
