"""Fixtures of the native core's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[_native.Engine]:
    """An engine with two copy threads."""
    engine = _native.Engine(2)
    yield engine
    engine.close()
    # Its eventfd lives as long as the object, which pytest would keep beyond the look for leaks.
    del request.node.funcargs["engine"]
