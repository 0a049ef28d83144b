"""What the simulator knows of slot memory: who wrote what into it, and whether somebody was reading meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId
from wtransport.session.sink.slots import Slot, SlotState

#: The "rank" of a holder that writes every part at once.
WHOLE = -1


class Violation(AssertionError):
    """A rule of the protocol was broken."""


@dataclass(frozen=True)
class Tag:
    """What one rank's part of a memory holds; ``whole`` once its last byte was written."""

    identity: Identity
    generation: int
    whole: bool


@dataclass
class Memory:
    """One slot's pages; abandoning the slot leaves these behind with whoever still has them mapped (P7)."""

    name: str
    parts: dict[int, Tag] = field(default_factory=dict)

    def holds(self, identity: Identity, world_size: int) -> bool:
        """Whether every part is here and *identity*'s, to the last byte."""
        covered = WHOLE in self.parts or len(self.parts) == world_size
        return covered and all(tag.whole and tag.identity == identity for tag in self.parts.values())

    def write(self, slot: Slot | None, shown: bool, rank: int, tag: Tag) -> None:
        """A writer stores bytes.

        Args:
            slot: The slot that has these pages now, None if none has.
            shown: Whether the user may be given that slot at any moment.
            rank: Whose part.
            tag: What it is afterwards.

        Raises:
            Violation: If somebody may be reading.
        """
        if slot is not None:
            if shown or slot.in_use:
                raise Violation(f"{self.name} is written with {tag} while it is read (shown={shown}, leases={slot.leases})")
            if slot.state is SlotState.COMPLETE:
                raise Violation(f"{self.name} is written with {tag} while it holds {slot.identity}")
        if rank == WHOLE:
            self.parts.clear()
        else:
            self.parts.pop(WHOLE, None)
        self.parts[rank] = tag


@dataclass
class Write:
    """One delivery's native work: it stores what it has until the test completes it, whoever has gone meanwhile."""

    delivery: int
    identity: Identity
    rank: int
    sink: MemberId
    memory: Memory | None
    slot: int
    generation: int
    origin: Memory | None = None
    pinned: tuple[int, int] | None = None
    cancelled: bool = False


@dataclass
class Shown:
    """One version a user was shown."""

    seq: int
    identity: Identity
    binding: int
