"""The simulated driver of a sink: slot memory, grants, verification, and the user who reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, MemberId
from wtransport.session.sink.machine import Sink
from wtransport.session.sink.slots import Slot, SlotState
from wtransport.testing.simulation.memory import Memory, Shown, Violation
from wtransport.testing.simulation.network import Gone, Link, Linked

if TYPE_CHECKING:
    from wtransport.testing.simulation.member import SimMember

_REDIAL_S = 0.05


class SimSink:
    """One generator's sink and its user.

    Attributes:
        memories: Pages by slot of the present binding.
        tasks: Work the machine asked for and the test has not carried out yet, by kind, in order.
        shows: Every version the user was shown.
        taken: The number of the last version the user took.
        leases: (binding, slot, memory, what it held) of every lease the user has.
    """

    def __init__(self, member: SimMember) -> None:
        self._member = member
        profile = member.profile
        size = profile.world_size if profile.group else 1
        self.machine = Sink(group_size=size, stall_timeout_s=member.sim.stall_timeout_s)
        self.memories: list[Memory] = []
        self.tasks: dict[str, list[object]] = {"assign": [], "verify": [], "fresh": []}
        self.shows: list[Shown] = []
        self.shown: act.ShowVersion | None = None
        self.leases: list[tuple[int, int, Memory, act.ShowVersion]] = []
        self.links: dict[MemberId, Link] = {}
        self.ready: set[MemberId] = set()
        self.failed_gets: list[act.GetFailed] = []
        self.taken = 0
        self._wanted: set[MemberId] = set()
        self._held: dict[int, int] = {}
        self._serial = 0

    # The user.

    def bind(self, num_slots: int = 2) -> None:
        """A new binding."""
        sim = self._member.sim
        self.machine.bind(num_slots, sim.now)
        self._serial += 1
        self.memories = [self._pages(index) for index in range(num_slots)]
        self.shown = None
        for link in self.links.values():
            link.to_b.send(msg.Bound(self.machine.binding))
        for number in self._held.values():
            self._member.source.unhold(number)
        self._held.clear()
        self._member.pump()

    def lease(self) -> int:
        """Take what is shown; returns the version."""
        assert self.shown is not None
        memory = self.memories[self.shown.slot]
        self.taken = self.shown.seq
        self.machine.lease(self.shown.slot)
        self.leases.append((self.machine.binding, self.shown.slot, memory, self.shown))
        self._member.pump()
        return self.shown.identity.version

    def release(self) -> None:
        """End the oldest lease; its tensors go with it."""
        binding, slot, _, _ = self.leases.pop(0)
        now = self._member.sim.now
        self.machine.lease_ended(binding, slot, now)
        if not any(item[:2] == (binding, slot) for item in self.leases):
            self.machine.tensors_gone(binding, slot, now)
        self._member.pump()

    # Links.

    def on_members(self, members: dict[MemberId, msg.MemberRecord]) -> None:
        """The roster changed: link to every trainer, forget who left."""
        for source in [item for item in self._wanted if item not in members]:
            self.drop(source)
        for source in self._member.membership.trainers():
            self.want(source)

    def want(self, source: MemberId) -> None:
        """Have a link to *source* up until it leaves."""
        if source not in self._wanted:
            self._wanted.add(source)
            self.dial(source)

    def dial(self, source: MemberId) -> None:
        """Dial *source*, if it is there."""
        peer = self._member.sim.member(source)
        if source not in self._wanted or source in self.links or peer is None or not self._member.alive:
            return
        me = self._member.membership.member
        link = self._member.sim.network.link(
            me, source, lambda message: self.on_message(source, link, message), lambda message: peer.from_sink(me, link, message)
        )
        self.links[source] = link
        if me in peer.source.links:
            peer.source.gone(me)  # it hears of the new link first
        peer.source.links[me] = link
        link.to_b.send(msg.DataOffer("sim", "", b"", 0, ""))
        link.to_b.send(msg.Bound(self.machine.binding))

    def drop(self, source: MemberId) -> None:
        """Give the link up."""
        self._wanted.discard(source)
        if source in self.links:
            self.links[source].cut("left the roster")
            self._gone(source)

    def forget_wanted(self) -> None:
        """A new incarnation wants nothing yet."""
        self._wanted.clear()

    def on_message(self, source: MemberId, link: Link, message: object) -> None:
        """A source's message."""
        if self.links.get(source) is not link or not self._member.alive:
            return
        machine, now = self.machine, self._member.sim.now
        match message:
            case Gone():
                self._gone(source)
                self._member.sim.later(_REDIAL_S, lambda: self.dial(source))
            case Linked():
                self.ready.add(source)
                machine.catchup.on_source_ready(source, now)
            case _:
                dispatch.source_to_sink(machine, source, message, now)
        self._member.pump()

    def on_coordinator(self, message: object) -> None:
        """The coordinator's word."""
        dispatch.coordinator_to_sink(self.machine, message, self._member.sim.now)

    def holdings(self) -> tuple[msg.Holding, ...]:
        """What is declared to a coordinator."""
        newest = self.machine.slots.newest_identity
        holding = self.machine.shows.holdings.get(newest) if newest is not None else None
        return (holding,) if holding is not None else ()

    # Actions.

    def carry_out(self, action: object) -> None:
        """Carry one action out."""
        match action:
            case act.Send(to, message):
                if to == COORDINATOR:
                    self._member.tell(message)
                elif to in self.links:
                    self.links[to].to_b.send(message)
            case act.SendGrant(to, slot, generation, identity):
                if to in self.ready:
                    self.links[to].to_b.send(msg.Grant(self.machine.binding, slot, generation, self.memories[slot], identity))
            case act.AssignBoxes():
                self.tasks["assign"].append(action)
            case act.VerifySlot():
                self.tasks["verify"].append(action)
            case act.AbandonSlot(slot):
                self.tasks["fresh"].append((self.machine.binding, slot))
            case act.ShowVersion():
                self._show(action)
            case act.SlotReused(slot):
                if slot in self._held:
                    self._member.source.unhold(self._held.pop(slot))
            case act.NeedLink(source):
                if source in self._member.membership.members:
                    self.want(source)
                else:
                    self.machine.catchup.holder_failed(source, "not a member", self._member.sim.now)
            case act.GetFailed():
                self.failed_gets.append(action)

    def run(self, kind: str) -> None:
        """Carry out the oldest task of that kind."""
        task = self.tasks[kind].pop(0)
        now = self._member.sim.now
        match task:
            case act.AssignBoxes(name):
                feed = self.machine.feeds.by_name.get(name)
                if feed is not None and feed.whole:
                    for source in sorted(set(feed.contributors.values())):
                        want = msg.Want(name, self.machine.binding, feed.serial, feed.digests[0], b"", b"")
                        if source in self.links:
                            self.links[source].to_b.send(want)
                    self.machine.on_boxes_assigned(name, feed.serial, "", now)
            case act.VerifySlot(slot, generation, identity, _, parts):
                holding = msg.Holding(identity, "slot", tuple(range(parts)), parts, 0)
                if slot < len(self.memories) and self.machine.slots[slot].generation == generation:
                    self._held[slot] = self._member.source.hold(identity, parts, self.machine.binding, slot, self.memories[slot])
                self.machine.on_verified(slot, generation, None, holding, now)
            case (int(binding), int(slot)):
                if binding == self.machine.binding:
                    self.memories[slot] = self._pages(slot)
                    self.machine.on_slot_fresh(binding, slot, self.machine.slots[slot].generation, now)
        self._member.pump()

    def slot_of(self, memory: Memory) -> Slot | None:
        """The slot whose pages these are now."""
        for slot, pages in zip(self.machine.slots.slots, self.memories, strict=True):
            if pages is memory:
                return slot
        return None

    def check(self) -> None:
        """What must hold after every step."""
        for slot, memory in zip(self.machine.slots.slots, self.memories, strict=True):
            if slot.state is SlotState.COMPLETE and slot.identity is not None:
                self._member.sim.installed.add((self._member.membership.member, slot.identity))
                if not memory.holds(slot.identity, self._member.sim.world_size):
                    raise Violation(f"{memory.name} is complete with {slot.identity}, and holds {memory.parts}")
        for _, _, memory, shown in self.leases:
            if not memory.holds(shown.identity, self._member.sim.world_size):
                raise Violation(f"{memory.name} is leased with {shown.identity}, and holds {memory.parts}")

    def _show(self, action: act.ShowVersion) -> None:
        memory = self.memories[action.slot]
        if not memory.holds(action.identity, self._member.sim.world_size):
            raise Violation(f"{memory.name} is shown as {action.identity}, and holds {memory.parts}")
        if self.shows:
            last = self.shows[-1]
            lower = action.identity < last.identity or action.identity.version < last.identity.version
            afresh = last.binding != self.machine.binding  # a new binding holds nothing: it takes the newest there is
            if lower and not afresh and not last.identity.publication < self.machine.rewound <= action.identity.publication:
                raise Violation(f"{self._member.profile.name} is shown {action.identity} after {last.identity}, with no rewind")
            if action.seq <= last.seq:
                raise Violation(f"{self._member.profile.name} is shown number {action.seq} after {last.seq}")
        self.shown = action
        self.shows.append(Shown(action.seq, action.identity, self.machine.binding))

    def _gone(self, source: MemberId) -> None:
        self.links.pop(source, None)
        self.ready.discard(source)
        self.machine.on_source_gone(source, "the link ended", self._member.sim.now)
        self._member.pump()

    def _pages(self, index: int) -> Memory:
        self._serial += 1
        return Memory(f"{self._member.profile.name}/{index}.{self._serial}")
