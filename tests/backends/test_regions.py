from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wtransport.backends.regions import RemoteRegion
from wtransport.backends.spans import check_bounds, check_table, table_nbytes
from wtransport.errors import ConfigError, ProtocolError

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.builds(RemoteRegion, st.text(min_size=1, max_size=64), NUMBERS, NUMBERS, NUMBERS))
def test_travels_unchanged(remote: RemoteRegion) -> None:
    assert RemoteRegion.from_wire(msgpack.unpackb(msgpack.packb(remote.to_wire()))) == remote


@pytest.mark.parametrize(
    "change",
    [
        {"key": -1},
        {"key": 2**63},
        {"key": "1"},
        {"key": True},
        {"key": None},
        {"nbytes": 1.5},
        {"generation": -1},
        {"backend": ""},
        {"backend": "x" * 65},
        {"backend": 1},
        {"v": 2},
        {"extra": 1},
    ],
)
def test_refuses_what_it_did_not_make(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        RemoteRegion.from_wire(RemoteRegion("shm", 1, 2, 3).to_wire() | change)


def test_refuses_missing_fields_and_other_things() -> None:
    wire = RemoteRegion("shm", 1, 2, 3).to_wire()
    for name in wire:
        with pytest.raises(ProtocolError):
            RemoteRegion.from_wire({key: value for key, value in wire.items() if key != name})
    for other in (None, [], b"", 7):
        with pytest.raises(ProtocolError):
            RemoteRegion.from_wire(other)


def test_table_is_made_contiguous() -> None:
    wide = np.arange(24, dtype=np.int64).reshape(2, 12)[:, ::2]
    table = check_table(wide, 1)
    assert table.flags.c_contiguous
    assert table_nbytes(table) == wide[:, 3].sum()


@pytest.mark.parametrize(("start", "nbytes", "fits"), [(0, 10, True), (10, 0, True), (1, 10, False), (11, 0, False), (2**63 - 1, 2, False)])
def test_bounds_of_a_row(start: int, nbytes: int, fits: bool) -> None:
    table = np.array([[0, 0, 0, 1, 0, 0], [0, 0, start, nbytes, 0, 0]], np.int64)
    if fits:
        check_bounds(table, 10)
        return
    with pytest.raises(ConfigError, match="row 1"):
        check_bounds(table, 10)
