"""Landmarks of Nyström approximations, and the samplings that choose them.

- ``samplings``   ``LandmarkRequest`` and ``Landmarks``; the pass by which samplings draw rows by weight; landmarks that
  the caller chose; "uniform", "diagonal", "column-norm", whose weights are known from the rows or from one sweep;
  "rpcholesky", randomly pivoted Cholesky in one read or a few; "kmeans", cluster centres, by dask-ml

A fit makes a ``LandmarkRequest`` from its rows, with their view and maps, and declares ``landmark_passes``;
``select_landmarks`` then checks the sampling and calls its function, which folds ``BestRows`` with a ``RowWeight`` and
returns ``Landmarks`` in the dtype of the rows.

Add a sampling: a function and its passes in ``samplings``, one row of ``SAMPLINGS``, one row in ``tests/landmarks``.
"""

from bigpca.landmarks.samplings import SAMPLINGS as SAMPLINGS
from bigpca.landmarks.samplings import LandmarkRequest as LandmarkRequest
from bigpca.landmarks.samplings import Landmarks as Landmarks
from bigpca.landmarks.samplings import landmark_passes as landmark_passes
from bigpca.landmarks.samplings import landmark_values as landmark_values
from bigpca.landmarks.samplings import select_landmarks as select_landmarks
