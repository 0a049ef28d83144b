"""What a generator's user reads: waits for versions, and leases of the slots they lie in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from wtransport.errors import ClosedError, DeadlineError, ResourceError, TransportError, WeightsError
from wtransport.session.identity import Identity

if TYPE_CHECKING:
    from wtransport.memory.landing_slot import LandingSlot
    from wtransport.service.context import Context
    from wtransport.service.pump import Pump
    from wtransport.session import actions as act
    from wtransport.session.sink.machine import Sink


# Of each waiter only those that came since it began count.
_KEPT_ERRORS = 64


@dataclass(frozen=True)
class Lease:
    """What the user is given: tensors over one slot, and how to give it back (from any thread)."""

    identity: Identity
    seq: int
    tensors: dict[str, torch.Tensor]
    release: Callable[[], None]


class Reading:
    """The user's side of one sink.

    Attributes:
        slots: The present binding's slots; empty before the first bind.
        shown: What the user is given next.
        binding_error: Why the binding does not fit; raised by whoever waits.

    Args:
        context: The member's means.
        machine: The sink's machine.
        pump: Carries out what it wants done.
        post: Runs a function on the service's loop, from any thread.
        troubles: Why there is no link to some source.
    """

    def __init__(
        self,
        context: Context,
        machine: Sink,
        pump: Callable[[], Pump],
        post: Callable[..., None],
        troubles: Callable[[], Iterable[TransportError]],
    ) -> None:
        self._troubles = troubles
        self._context = context
        self.machine = machine
        self._pump = pump
        self._post = post
        self.slots: list[LandingSlot] = []
        self.shown: act.ShowVersion | None = None
        self.binding_error: TransportError | None = None
        self._failure: TransportError | None = None
        self._pull_errors: deque[tuple[int, Identity, TransportError]] = deque(maxlen=_KEPT_ERRORS)
        self._stamp = 0
        self._changed = asyncio.Event()
        self._closed = False

    def changed(self) -> None:
        """Something a waiter may wait for has happened."""
        self._changed.set()

    def fail(self, error: TransportError) -> None:
        """This member is none any more, for good: every wait ends with *error*."""
        self._failure = error
        self._changed.set()

    def pull_failed(self, identity: Identity, error: TransportError) -> None:
        """A version could not be pulled: whoever waits for it is told."""
        self._stamp += 1
        self._pull_errors.append((self._stamp, identity, error))
        self._changed.set()

    def close(self) -> None:
        """End every wait."""
        self._closed = True
        self._changed.set()

    async def next(self, after: int, timeout_s: float | None) -> Lease:
        """The newest version shown with a number above *after*.

        Raises:
            DeadlineError: If none came within *timeout_s*.
            ManifestMismatchError: If the binding does not fit the trainers' weights.
        """
        await self._wait(lambda: self.shown is not None and self.shown.seq > after, timeout_s, "no new version")
        return self._lease()

    async def ready(self, timeout_s: float) -> int:
        """The version shown, once it is the newest there was to be had when this was asked, or a newer one.

        Raises:
            UnavailableError: If no live member can give it.
            DeadlineError: If it did not come within *timeout_s*.
        """
        began, target = self._ask(), None if self._showing else self._newest

        def there() -> bool:
            nonlocal target
            if target is None and not self._showing:
                target = self._newest  # the coordinator has said meanwhile what there is
            return self.shown is not None and (target is None or not self.machine.newer(target, self.shown.identity))

        await self._wait(
            there, timeout_s, "no current version", lambda: self._refusal(began, lambda identity: target is None or identity >= target)
        )
        assert self.shown is not None
        return self.shown.identity.version

    async def get(self, version: int | None, timeout_s: float) -> Lease:
        """The newest version there is (pulled if this member does not hold it), or at least *version*.

        Raises:
            UnavailableError: If no live member holds it.
            ManifestMismatchError: If the binding does not fit what its holders have.
            DeadlineError: If it did not come within *timeout_s*.
        """
        newest = self._newest if version is None and not self._showing else None
        began = self._ask()

        def there() -> bool:
            if self.shown is None:
                return False
            if version is not None:
                return self.shown.identity.version >= version
            if newest is None or self.shown.identity >= newest or not self.machine.newer(newest, self.shown.identity):
                return True
            # Nothing newer can land while every slot is read: what is held is the newest that can be had.
            slots = self.machine.slots
            return slots.writable() is None and slots.credited() is None and newest not in self.machine.landings

        def wanted(identity: Identity) -> bool:
            return identity.version >= version if version is not None else newest is None or identity >= newest

        what = "no version" if version is None else f"version {version} did not come"
        await self._wait(there, timeout_s, what, lambda: self._refusal(began, wanted), passing=True)
        return self._lease()

    def _ask(self) -> int:
        """Have what is available pulled, be it once more; returns the stamp that failures from now on are above."""
        began = self._stamp
        self.machine.catchup.try_again()
        self.machine.advance(self._context.now)
        self._pump().run()
        return began

    @property
    def _newest(self) -> Identity | None:
        """The newest version that the coordinator has offered."""
        available = self.machine.catchup.available
        return available.identity if available is not None else None

    @property
    def _showing(self) -> bool:
        """P4: what a group is shown next, and when, is the coordinator's choice: what is shown now is the newest there is."""
        return self.machine.shows.grouped and self.shown is not None

    def _refusal(self, began: int, wanted: Callable[[Identity], bool]) -> TransportError | None:
        """Why a version that is wanted cannot be pulled, if that was found after *began* and nothing newer is to be had."""
        newest = self._newest
        for stamp, identity, error in self._pull_errors:
            if stamp > began and wanted(identity) and not (newest is not None and newest > identity):
                return error
        return None

    async def _wait(
        self,
        there: Callable[[], bool],
        timeout_s: float | None,
        what: str,
        refused: Callable[[], TransportError | None] = lambda: None,
        *,
        passing: bool = False,
    ) -> None:
        deadline = None if timeout_s is None else self._context.now + timeout_s
        while True:
            if self._closed:
                raise ClosedError("the transport is closed")
            if (error := self._failure or self.binding_error) is not None:
                raise error.copied()
            if not self.slots:
                raise WeightsError("nothing is bound", hint="await transport.bind(model.state_dict()) first")
            if there():
                return
            if (error := refused()) is not None:
                raise error.copied()
            if passing and self.shown is not None:
                # P4: a group is shown the next version only once every rank has taken this one, be it to pass it over.
                self.machine.shows.taken()
                self._pump().run()
            self._changed.clear()
            left = None if deadline is None else deadline - self._context.now
            try:
                if left is not None and left <= 0:
                    raise TimeoutError
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError as late:
                slots = self.machine.slots
                have = self.shown.identity.version if self.shown is not None else None
                blocked = f"; {self.machine.why_unwritable()}" if slots.writable() is None and slots.credited() is None else ""
                hint = None
                if (gone := self.machine.catchup.gone) is not None and (have is None or gone.version > have):
                    blocked += f"; version {gone.version} was put, and nobody holds it any more"
                    hint = "with snapshot=True a trainer can serve a version though its weights have changed since"
                for trouble in self._troubles():
                    if isinstance(trouble, ResourceError):
                        raise trouble.copied() from trouble
                    blocked += f"; no link to {trouble.peer}: {trouble.message}"
                raise DeadlineError(f"{what} within {timeout_s:g} s; held here: {have}{blocked}", phase="get", hint=hint) from late

    def _lease(self) -> Lease:
        shown = self.shown
        assert shown is not None
        slot = self.slots[shown.slot]
        binding = self.machine.binding
        self.machine.lease(shown.slot)
        self._pump().run()
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._post(self._lease_ended, binding, shown.slot)

        return Lease(shown.identity, shown.seq, slot.tensors(), release)

    def _lease_ended(self, binding: int, slot: int) -> None:
        self.machine.lease_ended(binding, slot, self._context.now)
        self.tensors_gone(binding, slot)

    def tensors_gone(self, binding: int, slot: int) -> None:
        """Perhaps the last tensor over the slot is gone: it may be written again."""
        if binding == self.machine.binding and self.slots and not self.slots[slot].tensors_alive():
            self.machine.tensors_gone(binding, slot, self._context.now)
        self._pump().run()
