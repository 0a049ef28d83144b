"""paced: loops over many tensors that leave the interpreter to the process's other threads now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

# An item costs 10 to 40 us: a turn stays below a millisecond, the pauses below a tenth of the work.
_TURN: Final = 32
_PAUSE_S: Final = 20e-6


def paced(items: Iterable[T]) -> Iterator[T]:
    """Iterate over *items*; after each few dozen, sleep for a moment.

    Otherwise another thread that wants to run Python code gets its turn only every 5 ms (``sys.getswitchinterval``), and the user's
    event loop would feel every plan that the service thread makes.
    """
    for index, item in enumerate(items, 1):
        yield item
        if index % _TURN == 0:
            time.sleep(_PAUSE_S)
