"""What the parts of one member's service share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wtransport.backends.base import Backend, Capabilities, Listener, Unavailable
from wtransport.backends.driver import EngineDriver
from wtransport.backends.hostfacts import HostFacts
from wtransport.config import TransportConfig
from wtransport.control.secret import Secret
from wtransport.memory.budget import MemoryBudget
from wtransport.recorder.ring import FlightRecorder
from wtransport.session.membership import Membership

if TYPE_CHECKING:
    from wtransport import _native


@dataclass
class Context:
    """One member's means.

    Attributes:
        config: Settings.
        secret: What peers must prove.
        membership: Who it is, and who else is there.
        driver: The native engine on the service's loop.
        backends: Usable backends by name.
        listeners: Their listeners, by backend.
        capabilities: What each backend said when probed.
        facts: This process's host.
        requested: The user's choice of backend, or ``auto``.
        recorder: The flight recorder; None if its file could not be made.
        budget: Counts the memory mapped.
        send: Sends a message to the coordinator; False while there is none.
        tasks: What runs on the service's loop; waited for when it ends.
    """

    config: TransportConfig
    secret: Secret
    membership: Membership
    driver: EngineDriver
    backends: Mapping[str, Backend]
    listeners: Mapping[str, Listener]
    capabilities: Mapping[str, Capabilities | Unavailable]
    facts: HostFacts
    requested: str
    recorder: FlightRecorder | None
    budget: MemoryBudget
    send: Callable[[object], bool]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def now(self) -> float:
        """The loop's time."""
        return self.driver.loop.time()

    @property
    def engine(self) -> _native.Engine:
        """The native engine."""
        return self.driver.engine

    def spawn(self, call: object) -> asyncio.Task[None]:
        """Run a coroutine; close() waits for it."""
        task: asyncio.Task[None] = self.driver.loop.create_task(call)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.driver.loop.call_exception_handler({"message": "wtransport: a service task failed", "exception": error})

    def hello(self, to: str) -> dict[str, object]:
        """What this member says first on a peer link."""
        usable = [name for name, found in self.capabilities.items() if isinstance(found, Capabilities)]
        return {
            "member": self.membership.member,
            "name": self.membership.profile.name,
            "to": to,
            "facts": self.facts.to_wire(),
            "backends": usable,
        }
