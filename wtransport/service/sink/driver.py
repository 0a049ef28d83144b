"""The driver of a sink: memory, grants, verification, and what the user is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wtransport.backends.base import MemoryRegion
from wtransport.errors import (
    ClosedError,
    ManifestMismatchError,
    ProtocolError,
    TransportError,
    UnavailableError,
    error_classes,
)
from wtransport.memory.landing_slot import LandingSlot
from wtransport.memory.names import given_names
from wtransport.memory.tensors import inspect
from wtransport.recorder.format import Op
from wtransport.service import local
from wtransport.service.pump import Pump
from wtransport.service.sink.feedplans import FeedPlan, FeedPlans
from wtransport.service.sink.grants import Grants
from wtransport.service.sink.reading import Lease, Reading
from wtransport.service.sink.upstream import Upstreams
from wtransport.service.sink.verification import PartBytes, check_cells, check_parts
from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity, MemberId
from wtransport.session.sink.machine import Sink

if TYPE_CHECKING:
    from wtransport.service.context import Context
    from wtransport.weights.manifest import Manifest

_SLOTS = 2
_MEMORY_RETRY_S = 1.0
_MISFIT_HINT = "bind what the trainers put, or put what the generators want"


@dataclass(frozen=True)
class SinkCalls:
    """What a landing needs of the rest of the member.

    Attributes:
        hold: Offers an installed version to those who pull; returns a number.
        unhold: Takes the offer back.
        post: Runs a function on the service's loop, from any thread.
        emit: Hands an event to the user.
    """

    hold: Callable[..., int]
    unhold: Callable[[int], None]
    post: Callable[..., None]
    emit: Callable[[msg.EventNotice], None]


class SinkDriver:
    """Everything a generator does as a sink.

    Args:
        context: The member's means.
        calls: The rest of the member.
    """

    def __init__(self, context: Context, calls: SinkCalls) -> None:
        self._context = context
        self._calls = calls
        profile = context.membership.profile
        grouped = profile.world_size if profile.group else 1
        self.machine = Sink(group_size=grouped, stall_timeout_s=context.config.stall_timeout_s)
        self.links = Upstreams(context, self._message, self._linked, self._gone, lambda: self.machine.binding)
        self.wanted: Manifest | None = None
        self.feeds = FeedPlans(context, self.links)
        self._parts: dict[tuple[Identity, int], PartBytes] = {}
        self._held: dict[int, int] = {}
        self._binding = asyncio.Lock()
        self.reading = Reading(context, self.machine, lambda: self.pump, calls.post, lambda: self.links.failures.values())
        self.grants = Grants(context, self.links, self.reading)
        self.pump = Pump(
            self.machine,
            {
                act.Send: self._send,
                act.SendGrant: self._grant,
                act.RevokeGrants: lambda action: self.grants.revoke(action.slot),
                act.AssignBoxes: lambda action: context.spawn(self._assign(action.feed)),
                act.VerifySlot: self._verify,
                act.ShowVersion: self._show,
                act.AbandonSlot: lambda action: context.spawn(self._abandon(action.slot)),
                act.SlotReused: self._reused,
                act.NeedLink: self._need_link,
                act.GetFailed: self._get_failed,
                act.BindingRefused: self._binding_refused,
            },
        )

    # The user.

    async def bind(self, weights: object) -> int:
        """Make landing memory for *weights*' names, shapes and dtypes; returns the bytes mapped for it."""
        async with self._binding:
            return await self._bind(inspect(weights).manifest, given_names(weights))

    async def _bind(self, wanted: Manifest, names: tuple[str, ...]) -> int:
        slots: list[LandingSlot] = []
        binding = self.machine.binding + 1
        try:
            for index in range(_SLOTS):
                on_release = partial(self._calls.post, self.reading.tensors_gone, binding, index)
                slot = LandingSlot(wanted, self._context.budget, on_release, names=names)
                slots.append(slot)
                await local.populate(self._context, MemoryRegion("local", slot.region, slot))
        except BaseException:
            for slot in slots:
                slot.close()
            raise
        old = self.reading.slots
        self.machine.bind(_SLOTS, self._context.now)
        self.links_say(msg.Bound(self.machine.binding))
        self.wanted, self.reading.slots, self.reading.shown, self.reading.binding_error = wanted, slots, None, None
        self.grants.retire()
        self._parts.clear()
        for number in self._held.values():
            self._calls.unhold(number)
        self._held.clear()
        for source in self.links.links:
            self.grants.prepare(source)
        self.pump.run()
        for slot in old:
            self._context.driver.offload(slot.retire())
        if self.reading.binding_error is not None:
            raise self.reading.binding_error
        return sum(slot.nbytes for slot in slots)

    def links_say(self, message: object) -> None:
        """Tell every source."""
        for source in self.links.links:
            self.links.send(source, message)

    async def next(self, after: int, timeout_s: float | None) -> Lease:
        """See ``Reading.next``."""
        return await self.reading.next(after, timeout_s)

    async def get(self, version: int | None, timeout_s: float) -> Lease:
        """See ``Reading.get``."""
        return await self.reading.get(version, timeout_s)

    async def ready(self, timeout_s: float) -> int:
        """See ``Reading.ready``."""
        return await self.reading.ready(timeout_s)

    async def close(self) -> None:
        """Give everything back; tensors that are still referenced keep their memory."""
        self.reading.close()
        self.pump.close()
        self.links.drop_all(ClosedError("the transport was closed"))
        for slot in self.reading.slots:
            slot.close()
        self.reading.slots = []

    # The coordinator's words.

    def on_message(self, message: object) -> None:
        """A message from the coordinator."""
        dispatch.coordinator_to_sink(self.machine, message, self._context.now)
        if isinstance(message, msg.PublicationBegun):
            self.feeds.keep_only(self.machine.feeds.by_name.keys())
        self.reading.changed()
        self.pump.run()

    def on_members(self) -> None:
        """The roster changed: link to every trainer, forget who left."""
        membership = self._context.membership
        self.links.keep_only(membership.members)
        for record in membership.trainers().values():
            self.links.want(record)
        self.pump.run()

    def holdings(self) -> tuple[msg.Holding, ...]:
        """What is held here, for a declaration."""
        newest = self.machine.slots.newest_identity
        holding = self.machine.shows.holdings.get(newest) if newest is not None else None
        return (holding,) if holding is not None else ()

    # Links.

    def _linked(self, source: MemberId) -> None:
        self.grants.prepare(source)
        self.machine.catchup.on_source_ready(source, self._context.now)
        self.pump.run()

    def _gone(self, source: MemberId, cause: TransportError) -> None:
        self.feeds.forget(source)
        self.grants.forget(source)
        self.machine.on_source_gone(source, str(cause), self._context.now)
        self.pump.run()

    def _message(self, source: MemberId, message: object) -> None:
        if isinstance(message, msg.SourceManifest):
            self.feeds.declared(source, message, self.wanted)
        elif isinstance(message, msg.Part):
            self._parts[message.identity, message.rank] = PartBytes.of(message)
        dispatch.source_to_sink(self.machine, source, message, self._context.now)
        if self._parts:
            self._parts = {key: part for key, part in self._parts.items() if key[0] in self.machine.landings}
        self.pump.run()

    # Actions.

    def _send(self, action: act.Send) -> None:
        if action.to == COORDINATOR:
            self._context.send(action.message)
        else:
            self.links.send(action.to, action.message)

    def _grant(self, action: act.SendGrant) -> None:
        if self.wanted is not None:
            self.grants.send(action, self.machine.binding, len(self.wanted.canonical))

    async def _assign(self, feed: str) -> None:
        serial = self.machine.feeds.by_name[feed].serial if feed in self.machine.feeds.by_name else 0
        assert self.wanted is not None
        mismatch = await self.feeds.share_out(self.machine.feeds.by_name.get(feed), self.wanted, self.machine.binding)
        self.machine.on_boxes_assigned(feed, serial, mismatch, self._context.now)
        if not mismatch:
            self.reading.binding_error = None
        self.pump.run()

    def _verify(self, action: act.VerifySlot) -> None:
        plan = self.feeds.plans.get(action.feed)
        flight = self._begin_install(action)
        try:
            if plan is None or self.wanted is None:
                raise ProtocolError("the feed was shared out anew while the version landed")
            grants = {member: self.grants.of(action.slot, member) for member in plan.members.values()}
            parts = {rank: self._parts.pop((action.identity, rank)) for rank in plan.members}
            own = check_parts(plan, parts, grants, self.wanted, checking=self._context.config.verify != "off")
        except TransportError as error:
            self._verified(action, flight, error, None, None)
            return
        if self._context.config.verify == "full":
            self._context.spawn(self._verify_cells(action, flight, plan, own, self.wanted))
        else:
            self._verified(action, flight, None, plan, own)

    async def _verify_cells(
        self, action: act.VerifySlot, flight: int, plan: FeedPlan, own: npt.NDArray[np.uint64], wanted: Manifest
    ) -> None:
        landing = self.reading.slots[action.slot]
        try:
            await check_cells(self._context, wanted, MemoryRegion("local", landing.region, landing), own)
        except TransportError as error:
            self._verified(action, flight, error, None, None)
        else:
            self._verified(action, flight, None, plan, own)

    def _begin_install(self, action: act.VerifySlot) -> int:
        recorder, publication = self._context.recorder, action.identity.publication
        if recorder is None:
            return 0
        return recorder.begin(Op.INSTALL, version=action.identity.version, term=publication.term, publication=publication.n)

    def _verified(
        self,
        action: act.VerifySlot,
        flight: int,
        error: TransportError | None,
        plan: FeedPlan | None,
        own: npt.NDArray[np.uint64] | None,
    ) -> None:
        recorder = self._context.recorder
        if recorder is not None and error is not None:
            recorder.fail(flight, error)
        elif recorder is not None and self.wanted is not None:
            recorder.end(flight, nbytes_done=self.wanted.nbytes)
        holding = self._holding(action, plan, own) if plan is not None and own is not None else None
        told = (error.code, error.message, error.tensor) if error is not None else None
        self.machine.on_verified(action.slot, action.generation, told, holding, self._context.now)
        slot = self.machine.slots.complete(action.identity)
        if holding is not None and slot is not None and (slot.index, slot.generation) == (action.slot, action.generation):
            self._hold(action, own)  # before anybody is told that it can be had here
        self.pump.run()

    def _holding(self, action: act.VerifySlot, plan: FeedPlan, own: npt.NDArray[np.uint64]) -> msg.Holding:
        parts = tuple(range(action.parts)) if plan.covers else ()
        return msg.Holding(action.identity, "slot", parts, action.parts, int(np.sum(own, dtype=np.uint64)))

    def _hold(self, action: act.VerifySlot, own: npt.NDArray[np.uint64] | None) -> None:
        slot = self.reading.slots[action.slot]
        digests = own if self._context.config.verify != "off" else None
        pin = partial(self._pin, self.machine.binding, action.slot)
        self._held[action.slot] = self._calls.hold(action.identity, action.parts, self.wanted, slot.region, slot, digests, pin)

    def _pin(self, binding: int, slot: int) -> Callable[[], None]:
        if binding != self.machine.binding:
            return lambda: None
        self.machine.pin(slot)
        return partial(self._unpin, binding, slot)

    def _unpin(self, binding: int, slot: int) -> None:
        self.machine.lease_ended(binding, slot, self._context.now)
        self.pump.run()

    def _show(self, action: act.ShowVersion) -> None:
        self.reading.shown = action
        self.reading.binding_error = None  # the trainers put what fits again
        self.reading.changed()

    def _reused(self, action: act.SlotReused) -> None:
        number = self._held.pop(action.slot, None)
        if number is not None:
            self._calls.unhold(number)

    async def _abandon(self, index: int) -> None:
        binding, slot = self.machine.binding, self.reading.slots[index]
        while True:
            try:
                give_back = slot.abandon()
                break
            except ClosedError:
                return  # closed, or bound anew, meanwhile: nobody waits for this slot
            except TransportError as error:
                self._short_of_memory(error)
                await asyncio.sleep(_MEMORY_RETRY_S)
        self.grants.retire(index)  # only now: whoever linked meanwhile was passed the old memory, too
        try:
            await self._context.driver.offload(give_back)
            await local.populate(self._context, MemoryRegion("local", slot.region, slot))
        except ClosedError:
            return
        except TransportError as error:
            self._short_of_memory(error)  # the fresh memory is there, only slower at first
        self.machine.on_slot_fresh(binding, index, slot.generation, self._context.now)
        self.pump.run()

    def _short_of_memory(self, error: TransportError) -> None:
        self._calls.emit(msg.EventNotice("memory", self._context.membership.profile.name, None, str(error)))

    def _need_link(self, action: act.NeedLink) -> None:
        record = self._context.membership.members.get(action.member)
        if record is not None:
            self.links.want(record)
        else:
            self.machine.catchup.holder_failed(action.member, "it is not a member any more", self._context.now)

    def _get_failed(self, action: act.GetFailed) -> None:
        if action.identity is not None:
            cls: Any = error_classes().get(action.code, UnavailableError)
            hint = _MISFIT_HINT if cls is ManifestMismatchError else None
            self.reading.pull_failed(action.identity, cls(action.message, version=action.identity.version, hint=hint))

    def _binding_refused(self, action: act.BindingRefused) -> None:
        self.reading.binding_error = ManifestMismatchError(action.message, hint=_MISFIT_HINT)
        self.reading.changed()
