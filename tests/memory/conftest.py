from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.memory.native import take
from wtransport._native import Engine
from wtransport.memory.tensors import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine, whose threads have started before any test looks at what it leaves behind."""
    engine = Engine(1)
    snapshot, _ = take(engine, inspect({"w": torch.zeros(1 << 20)}))
    snapshot.close()
    yield engine
    engine.close()
