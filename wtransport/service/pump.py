"""The pump: feeds a sans-IO machine and carries its actions out, in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wtransport.session.actions import Action


class Machine(Protocol):
    """A sans-IO machine."""

    out: list[Action]

    def next_deadline(self) -> float | None:
        """When ``on_time`` has something to do next."""

    def on_time(self, now: float) -> None:
        """Time has passed."""


class Pump:
    """Drives one machine on one event loop.

    Handlers run at once, in the order of the actions, and may feed the machine again: what that adds follows behind.

    Args:
        machine: The machine.
        handlers: What to do for each type of action.
    """

    def __init__(self, machine: Machine, handlers: Mapping[type, Callable[[Any], object]]) -> None:
        self._machine = machine
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def now(self) -> float:
        """The loop's time, which is the machine's."""
        return self._loop.time()

    def run(self) -> None:
        """Carry out what the machine has left in ``out``, then set the timer for its next deadline."""
        if self._running or self._closed:
            return
        self._running = True
        try:
            while self._machine.out:
                actions, self._machine.out[:] = list(self._machine.out), []
                for action in actions:
                    try:
                        self._handlers[type(action)](action)
                    except Exception as error:
                        # A bug in one handler must not cost the actions behind it, nor the timer.
                        text = f"wtransport: carrying out {type(action).__name__} failed"
                        self._loop.call_exception_handler({"message": text, "exception": error})
        finally:
            self._running = False
        self._schedule()

    def close(self) -> None:
        """Stop the timer; nothing is carried out any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        deadline = self._machine.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self._closed:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._machine.on_time(self._loop.time())
        self.run()
