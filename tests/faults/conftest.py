"""Fixtures of the engine's tests that the fault tests share."""

from tests.passes.conftest import client, small_disk, small_groups, two_workers

__all__ = ["client", "small_disk", "small_groups", "two_workers"]
