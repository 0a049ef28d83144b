"""The simulated network: one FIFO queue each way per link, delivered one message at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gone:
    """An end learns that the link ended; always the last thing it hears of it."""

    cause: str


@dataclass(frozen=True)
class Linked:
    """An end learns that the data endpoint is up."""


@dataclass
class Queue:
    """One direction of a link."""

    name: str
    handle: Callable[[object], None]
    items: deque[object] = field(default_factory=deque)
    open: bool = True

    def send(self, message: object) -> None:
        """Queue *message*; what is sent into a closed link is lost."""
        if self.open:
            self.items.append(message)


@dataclass
class Link:
    """Two ends, a queue towards each; ``a`` dialled."""

    to_a: Queue
    to_b: Queue

    def cut(self, cause: str) -> None:
        """Lose what is in flight; each end hears of it as its next message."""
        for queue in (self.to_a, self.to_b):
            if queue.open:
                queue.items.clear()
                queue.items.append(Gone(cause))
                queue.open = False

    def finish(self, cause: str) -> None:
        """End the link after what was sent to ``a`` (an orderly close by ``b``)."""
        if self.to_a.open:
            self.to_a.items.append(Gone(cause))
            self.to_a.open = False
        self.to_b.items.clear()
        self.to_b.open = False


class Network:
    """Every queue, by name; the order of names makes a run repeatable."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._serial = 0
        self.delivered = 0
        self.log: list[str] = []

    def link(self, a: str, b: str, to_a: Callable[[object], None], to_b: Callable[[object], None]) -> Link:
        """A new link between the ends named *a* and *b*."""
        self._serial += 1
        link = Link(Queue(f"{b}>{a}.{self._serial}", to_a), Queue(f"{a}>{b}.{self._serial}", to_b))
        for queue in (link.to_a, link.to_b):
            self._queues[queue.name] = queue
        return link

    def ready(self) -> list[str]:
        """Names of the queues that have something to deliver."""
        for name in [name for name, queue in self._queues.items() if not queue.items and not queue.open]:
            del self._queues[name]
        return [name for name, queue in self._queues.items() if queue.items]

    def deliver(self, name: str) -> None:
        """Deliver that queue's next message."""
        queue = self._queues[name]
        message = queue.items.popleft()
        self.delivered += 1
        self.log.append(f"{name}: {message}")
        queue.handle(message)

    def peek(self, name: str) -> object:
        """What would be delivered next."""
        return self._queues[name].items[0]
