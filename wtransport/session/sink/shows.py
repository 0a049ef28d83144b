"""Which complete version the user sees next: at once for a generator alone, in the coordinator's order for a group (P4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity
from wtransport.session.sink.slots import Slot

if TYPE_CHECKING:
    from wtransport.session.sink.landing_book import LandingBook


class Shows:
    """What of a sink is complete, and what of that is shown.

    Attributes:
        grouped: Whether the coordinator says what is shown, and when (P4).
        seq: Number of the last version shown; a group's ranks all yield every number, in order.
        holdings: The sink's holdings by identity.
    """

    def __init__(self, sink: LandingBook, group_size: int) -> None:
        self._sink = sink
        self.grouped = group_size > 1
        self.seq = 0
        self.shown: Identity | None = None
        self.holdings: dict[Identity, msg.Holding] = {}
        self._untaken = False

    def rebound(self) -> None:
        """A new binding holds nothing yet; the sequence goes on."""
        self.holdings.clear()
        self.shown = None
        self._untaken = False

    def installed(self, slot: Slot, identity: Identity, holding: msg.Holding) -> None:
        """A version is verified and complete: show it, or keep it for the group until SHOW or RELEASE."""
        held = {item.identity for item in self._sink.slots.slots}
        self.holdings = {key: value for key, value in self.holdings.items() if key in held}
        self.holdings[identity] = holding
        if self.grouped:
            self._ready(slot, identity)
        else:
            self._show(slot, identity, self.seq + 1)

    def on_show(self, message: msg.Show) -> None:
        """P4: all ranks hold it and all have taken the number before."""
        slot = self._sink.slots.complete(message.identity)
        if slot is None:
            self._sink.dropped["show"] += 1
            return
        slot.held = slot.released = False
        self._show(slot, message.identity, message.seq)

    def on_release(self, identity: Identity) -> None:
        """P4: this READY will not be shown; the slot may be written again, while what is shown stays."""
        slot = self._sink.slots.complete(identity)
        if slot is not None:
            slot.held = False
            slot.released = self._sink.slots.shown not in (None, slot)

    def on_available(self, identity: Identity) -> None:
        """A rank that still holds a released version says READY again (a replacement joined)."""
        slot = self._sink.slots.complete(identity)
        if self.grouped and slot is not None and slot is not self._sink.slots.shown and not slot.held:
            self._ready(slot, identity)

    def taken(self) -> None:
        """The user was given what is shown."""
        if self.grouped and self._untaken:
            self._untaken = False
            self._sink.out.append(act.Send(COORDINATOR, msg.ShowTaken(self.seq)))

    def _ready(self, slot: Slot, identity: Identity) -> None:
        slot.held, slot.released = True, False
        self._sink.out.append(act.Send(COORDINATOR, msg.Ready(identity)))

    def _show(self, slot: Slot, identity: Identity, seq: int) -> None:
        self.seq = seq
        self.shown = identity
        self._untaken = True
        self._sink.slots.shown = slot
        self._sink.out.append(act.ShowVersion(slot.index, identity, seq))
