"""Whatever a test of security reads, no pickle in it may go off."""

from collections.abc import Iterator

import pytest

from tests.security.attacks import Explosive


@pytest.fixture(autouse=True)
def nothing_goes_off() -> Iterator[None]:
    yield
    assert not Explosive.went_off
