"""A worker preload for the checks: every group of rows takes ``SECONDS_PER_GROUP`` longer, as on a busy file system."""

from __future__ import annotations

import os
import time
from typing import Any

from bigpca.engine import jobs


def dask_setup(worker: Any) -> None:
    """Put a wait before each fold; tasks find the function by its name in ``jobs``."""
    fold_group = jobs.fold_group

    def slow_fold(*arguments: Any) -> Any:
        time.sleep(float(os.environ["SECONDS_PER_GROUP"]))
        return fold_group(*arguments)

    jobs.fold_group = slow_fold  # type: ignore[assignment]
