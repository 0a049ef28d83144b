"""The native core's digests are those of the committed vectors."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.memory.native import finish
from wtransport._native import LocalRegion
from wtransport.weights.digest import splitmix64

if TYPE_CHECKING:
    from wtransport._native import Engine

VECTORS = json.loads((Path(__file__).parents[1] / "weights" / "vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["bytes"], ids=lambda vector: vector["what"])
@pytest.mark.parametrize("misalignment", [0, 1, 7])
def test_native_bytes(engine: Engine, vector: dict[str, Any], misalignment: int) -> None:
    nbytes, seed = vector["nbytes"], vector["seed"]
    data = bytes(splitmix64(seed + place) >> 56 for place in range(nbytes))
    buffer = ctypes.create_string_buffer(bytes(misalignment) + data)
    address = ctypes.addressof(buffer) + misalignment
    region = LocalRegion([(address, 1, (nbytes,), (1,))])
    spans = np.array([[0, 0, 0, nbytes, 0, vector["position"]]], dtype=np.int64)
    work = finish(engine, engine.digest(region, spans, 1))
    assert int(work.digests()[0]) == int(vector["digest"], 16)
