"""MemoryBudget: how many bytes one transport has mapped, for what, and how many at most."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Literal

Use = Literal["slots", "snapshots", "quarantined"]


class MemoryBudget:
    """Counts mapped bytes by use. Thread-safe, and safe to give back to from a finalizer.

    ``quarantined`` is memory that was replaced but cannot be given back yet: a tensor or an
    unsettled work still holds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: Counter[Use] = Counter()
        self._peak_nbytes = 0
        # A finalizer may run inside any call, on a thread that holds the lock: it only appends.
        self._pending: deque[tuple[Use, int]] = deque()

    def add(self, use: Use, nbytes: int) -> None:
        """Count *nbytes* newly mapped bytes."""
        self._pending.append((use, nbytes))
        self._settle()

    def remove(self, use: Use, nbytes: int) -> None:
        """Count *nbytes* bytes given back; may be called from a finalizer."""
        self._pending.append((use, -nbytes))

    def mapped(self, use: Use) -> int:
        """Return the bytes mapped now for *use*."""
        return self._settle()[use]

    @property
    def nbytes(self) -> int:
        """Bytes mapped now."""
        return sum(self._settle().values())

    @property
    def peak_nbytes(self) -> int:
        """Most bytes that were mapped at one time."""
        self._settle()
        return self._peak_nbytes

    def _settle(self) -> Counter[Use]:
        with self._lock:
            while self._pending:
                use, nbytes = self._pending.popleft()
                self._mapped[use] += nbytes
                self._peak_nbytes = max(self._peak_nbytes, sum(self._mapped.values()))
            return self._mapped.copy()
