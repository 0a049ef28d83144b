"""paced: loops over many tensors that leave the interpreter to the process's other threads now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

# Items looked at between two glances at the clock, and how long a turn may last: the pauses stay below a tenth of the work.
_GLANCE: Final = 32
_TURN_S: Final = 1e-3
_PAUSE_S: Final = 20e-6


def paced(items: Iterable[T]) -> Iterator[T]:
    """Iterate over *items*; after each millisecond, sleep for a moment.

    Otherwise another thread that wants to run Python code gets its turn only every 5 ms (``sys.getswitchinterval``), and the user's
    event loop would feel every plan that the service thread makes.
    """
    ends = time.perf_counter() + _TURN_S
    for index, item in enumerate(items, 1):
        yield item
        if index % _GLANCE == 0 and time.perf_counter() >= ends:
            time.sleep(_PAUSE_S)
            ends = time.perf_counter() + _TURN_S
