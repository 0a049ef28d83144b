"""A deadline that knows progress from silence."""

from __future__ import annotations


class Deadline:
    """Expires when nothing moved for *timeout_s*; every bit of progress starts it again.

    Works that belong together share one: a work that waits in a queue then lives on the progress of
    those before it. Time is passed in, so that this class needs no clock.

    Args:
        timeout_s: Longest silence.
    """

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s!r}")
        self.timeout_s = timeout_s
        self._since: float | None = None

    def renew(self, now: float) -> None:
        """Something moved at *now* (seconds of a monotonic clock)."""
        self._since = now if self._since is None else max(self._since, now)

    def remaining_s(self, now: float) -> float:
        """Seconds of silence left at *now*, never negative; the first look starts the deadline."""
        if self._since is None:
            self._since = now
        return max(0.0, self._since + self.timeout_s - now)

    def expired(self, now: float) -> bool:
        """Whether nothing moved for too long at *now*; the first look starts the deadline."""
        return self.remaining_s(now) == 0.0
