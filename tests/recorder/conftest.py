"""Rings for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wtransport.recorder.ring import FlightRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def open_recorder(tmp_path: Path) -> Iterator[Callable[..., FlightRecorder]]:
    """Open a recorder under ``tmp_path``: ``open_recorder(member="trainer-0", num_records=64)``."""
    opened: list[FlightRecorder] = []

    def open_one(member: str = "trainer-0", num_records: int = 64, **about: object) -> FlightRecorder:
        who: dict[str, object] = {"job": "job", "role": "trainer", "rank": 0, "incarnation": f"{len(opened):032x}"}
        opened.append(FlightRecorder.open(tmp_path, member=member, num_records=num_records, **(who | about)))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for recorder in opened:
        recorder.close()
