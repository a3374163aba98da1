"""What runs beside what under ``pytest -n 2 --dist loadgroup``: every real cluster and every kill one after another."""

from __future__ import annotations

import re
from collections import Counter

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests marked ``cluster`` into one group, first because it is the longest; every other file is a group.

    Names of cases lose the addresses of functions: every process has others, and all must collect the same tests.
    """
    names: Counter[str] = Counter()
    for item in items:
        name = re.sub(r" at 0x[0-9a-f]+", "", item.nodeid)
        names[name] += 1
        item._nodeid = name if names[name] == 1 else f"{name}-{names[name]}"
    if config.getoption("dist", "no") != "loadgroup":
        return
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)
    for item in items:
        group = "cluster" if item.get_closest_marker("cluster") else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
