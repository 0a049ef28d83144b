"""The native writer and the Python reader agree on every byte of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wtransport import _native
from wtransport.recorder import format as flight_format
from wtransport.recorder.format import HEADER, RECORD, FlightBackend, FlightState, Op

if TYPE_CHECKING:
    import numpy as np


def _layout(kind: np.dtype[Any]) -> dict[str, tuple[int, int]]:
    assert kind.fields is not None
    return {name: (field[1], field[0].itemsize) for name, field in kind.fields.items()}


@pytest.mark.parametrize(("part", "kind"), [("header", HEADER), ("record", RECORD)])
def test_fields_lie_where_the_native_side_puts_them(part: str, kind: np.dtype[Any]) -> None:
    assert _native.flight_format()[part] == _layout(kind)


@pytest.mark.parametrize("constant", ["header_nbytes", "record_nbytes", "max_records", "detail_nbytes", "no_version"])
def test_constants_are_the_same(constant: str) -> None:
    assert _native.flight_format()[constant] == getattr(flight_format, constant.upper())


def test_version_and_states_are_the_same() -> None:
    found = _native.flight_format()
    assert found["version"] == flight_format.FORMAT_VERSION
    assert found["states"] == {state.name: state.value for state in FlightState}


def test_numbers_fit_their_fields() -> None:
    assert max(Op) < 1 << 16
    assert max(FlightBackend) < 1 << 8


def test_documented_layout_is_the_real_one() -> None:
    assert flight_format.__doc__ is not None
    documented = {}
    for line in flight_format.__doc__.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].isdigit() and words[1].isdigit():
            documented[words[2]] = (int(words[0]), int(words[1]))
    assert documented == _layout(HEADER) | _layout(RECORD)
