"""Landing slots of one binding: which may be written, by whom, and when one may be used again (P2, P7)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId


class SlotState(enum.Enum):
    """What a slot holds."""

    FREE = "free"
    CREDIT = "credit"
    LANDING = "landing"
    COMPLETE = "complete"
    DRAINING = "draining"
    ABANDONED = "abandoned"


@dataclass
class Slot:
    """One slot.

    Attributes:
        index: Its place in the binding.
        generation: Rises each time the slot is claimed for another version; every grant, part and read names it.
        identity: The version landing in it, or complete in it.
        granted: Members that may write now: granted, and neither PART nor RETURN came back.
        leases: Leases the user holds.
        tensors_alive: Whether a tensor over its memory still lives after the lease.
        held: Kept for its group until SHOW or RELEASE (P4).
        released: Complete, and never to be shown (P4): it may be written though it is the newest.
    """

    index: int
    generation: int = 0
    state: SlotState = SlotState.FREE
    identity: Identity | None = None
    granted: set[MemberId] = field(default_factory=set)
    leases: int = 0
    tensors_alive: bool = False
    held: bool = False
    released: bool = False

    @property
    def in_use(self) -> bool:
        """Whether somebody reads it: it must not change."""
        return self.leases > 0 or self.tensors_alive or self.held


class SlotTable:
    """The slots of one binding.

    ``shown`` is the slot the user is given next; ``newest`` the newest complete one. Both stay unwritable (P2, P4).
    """

    def __init__(self, num_slots: int) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        self.shown: Slot | None = None

    def __getitem__(self, index: int) -> Slot:
        return self.slots[index]

    def valid(self, index: int, generation: int, member: MemberId) -> Slot | None:
        """The slot if *member* holds a live grant of that generation; anything else is stale (P1, P7)."""
        if not 0 <= index < len(self.slots):
            return None
        slot = self.slots[index]
        return slot if slot.generation == generation and member in slot.granted else None

    @property
    def newest(self) -> Slot | None:
        """The newest complete slot."""
        complete = [slot for slot in self.slots if slot.state is SlotState.COMPLETE and slot.identity is not None]
        return max(complete, key=lambda slot: (slot.identity, slot.index), default=None)

    @property
    def newest_identity(self) -> Identity | None:
        """Identity of the newest complete slot."""
        newest = self.newest
        return newest.identity if newest is not None else None

    def complete(self, identity: Identity) -> Slot | None:
        """The slot that holds *identity* whole."""
        for slot in self.slots:
            if slot.state is SlotState.COMPLETE and slot.identity == identity:
                return slot
        return None

    def writable(self) -> Slot | None:
        """P2: a slot that nobody reads, nobody may still write, and that is neither shown nor the newest complete one."""
        newest = self.newest
        for slot in self.slots:
            if slot.granted or slot.in_use or slot is self.shown:
                continue
            if slot.state is SlotState.FREE or (slot.state is SlotState.COMPLETE and (slot is not newest or slot.released)):
                return slot
        return None

    def claim(self, slot: Slot, identity: Identity | None) -> None:
        """Take a writable slot for *identity* (None: as credit); what it held is gone, and old grants die with the generation."""
        slot.generation += 1
        slot.state = SlotState.LANDING if identity is not None else SlotState.CREDIT
        slot.identity = identity
        slot.released = False

    def release(self, slot: Slot, member: MemberId) -> None:
        """*member* has sent PART or RETURN: its works over the slot have settled."""
        slot.granted.discard(member)
        if not slot.granted and slot.state is SlotState.DRAINING:
            slot.state = SlotState.FREE
            slot.identity = None

    def drop(self, slot: Slot) -> None:
        """What lands in the slot does not count; it is free once every writer has returned it."""
        slot.identity = None
        slot.state = SlotState.DRAINING if slot.granted else SlotState.FREE

    def install(self, slot: Slot) -> None:
        """The landing is verified and whole."""
        slot.state = SlotState.COMPLETE

    def abandon(self, slot: Slot) -> None:
        """P7: a writer that may wake with a live mapping had a grant: this memory is never used again."""
        slot.state = SlotState.ABANDONED
        slot.identity = None
        slot.granted.clear()
        slot.generation += 1

    def fresh(self, slot: Slot, generation: int) -> None:
        """The abandoned slot has new memory at *generation*; ours never goes down."""
        slot.generation = max(slot.generation, generation)
        slot.state = SlotState.FREE

    def credited(self) -> Slot | None:
        """The slot that is out as credit."""
        for slot in self.slots:
            if slot.state is SlotState.CREDIT:
                return slot
        return None

    def granted_to(self, member: MemberId) -> list[Slot]:
        """Slots *member* may still write."""
        return [slot for slot in self.slots if member in slot.granted]
