"""A whole job in one thread: the real sans-IO machines over simulated links, memory and time, every rule checked after every step.

A test chooses what happens next (``choices`` and ``step``), or lets everything happen in a fixed order (``settle``), with time
advancing to the next deadline whenever nothing else can move. Nothing here depends on hashing or a clock: a run repeats.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.coordinator.machine import Coordinator
from wtransport.session.membership import Profile
from wtransport.testing.simulation.member import SimMember
from wtransport.testing.simulation.memory import Memory, Tag, Violation
from wtransport.testing.simulation.network import Gone, Link, Network

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.session.identity import Identity, MemberId

_MAX_STEPS = 20_000


class Simulator:
    """One job.

    Attributes:
        installed: Every (member, identity) that was ever complete in a slot.
        world_size: Trainer ranks whose parts make a version.
        hold_writes: Keep writes from completing by themselves in ``settle``; they stay in ``choices``.
    """

    def __init__(
        self, *, credit_timeout_s: float = 1.0, stall_timeout_s: float = 10.0, rebuild_s: float = 3.0, hold_writes: bool = False
    ) -> None:
        self.now = 0.0
        self.credit_timeout_s = credit_timeout_s
        self.stall_timeout_s = stall_timeout_s
        self.rebuild_s = rebuild_s
        self.hold_writes = hold_writes
        self.world_size = 1
        self.network = Network()
        self.members: dict[str, SimMember] = {}
        self.retired: list[SimMember] = []
        self.coordinator: Coordinator | None = None
        self.installed: set[tuple[MemberId, Identity]] = set()
        self._channels: dict[MemberId, Link] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._starts = 0
        self.start_coordinator()

    # The job.

    def draw(self) -> int:
        """A first incarnation number nobody has."""
        return next(self._numbers) * 100

    def start_coordinator(self) -> None:
        """A new incarnation of the coordinator; members that are alone come back to it."""
        self._starts += 1
        self.coordinator = Coordinator(f"{self._starts:032x}", rebuild_s=self.rebuild_s, answer_timeout_s=self.stall_timeout_s)
        for member in self.members.values():
            member.connect()

    def kill_coordinator(self) -> None:
        """It dies with everything it knew."""
        self.coordinator = None
        self._channels.clear()
        for member in self.members.values():
            if member.channel is not None:
                member.channel.cut("the coordinator died")
                member.channel.to_b.items.clear()

    def trainer(self, rank: int = 0, world_size: int = 1, name: str = "") -> SimMember:
        """A trainer rank joins."""
        self.world_size = max(self.world_size, world_size)
        return self._add(Profile("trainer", "", rank, world_size, name or f"t{rank}"), taker=False)

    def generator(
        self, name: str, *, group: str = "", rank: int = 0, world_size: int = 1, taker: bool = True, bind: bool = True
    ) -> SimMember:
        """A generator joins; with *bind* it has landing memory at once."""
        member = self._add(Profile("generator", group, rank, world_size, name), taker=taker)
        if bind:
            assert member.sink is not None
            member.sink.bind()
        return member

    def kill(self, member: SimMember) -> None:
        """The process ends: every peer hears of it; what its native threads had stored is stored."""
        self.members.pop(member.profile.name, None)
        self.retired.append(member)
        member.alive = False
        for link in (*member.source.links.values(), *(member.sink.links.values() if member.sink is not None else ())):
            link.cut("the process ended")
        if member.channel is not None:
            member.channel.cut("the process ended")
        member.source.writes.clear()

    def cut(self, sink: SimMember, source: SimMember) -> bool:
        """Cut the link between them, losing what is in flight; False if there is none."""
        link = sink.sink.links.get(source.id) if sink.sink is not None else None
        if link is None:
            return False
        link.cut("cut")
        return True

    def cut_channel(self, member: SimMember) -> bool:
        """Cut the member's channel to the coordinator."""
        if member.channel is None:
            return False
        member.channel.cut("cut")
        return True

    def member(self, incarnation: MemberId) -> SimMember | None:
        """The live member of that incarnation."""
        return next((item for item in self.members.values() if item.id == incarnation), None)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call when time has come that far."""
        self._timers.append((self.now + delay_s, next(self._numbers), call))

    # Steps.

    def choices(self) -> list[str]:
        """Everything that may happen next, time apart."""
        found = [f"deliver {name}" for name in self.network.ready()]
        for name, member in self.members.items():
            found += [f"write {name} {delivery}" for delivery in member.source.writes]
            if member.source.digests:
                found.append(f"digest {name}")
            if member.sink is not None:
                found += [f"{kind} {name}" for kind, tasks in member.sink.tasks.items() if tasks]
        return found + [f"beat {name}" for name, member in self.members.items() if self._contested(member)]

    def step(self, choice: str) -> None:
        """Let one of ``choices`` happen."""
        verb, name, *rest = choice.split(" ")
        if verb == "deliver":
            self.network.deliver(name)
        elif verb == "write":
            self.members[name].source.complete(int(rest[0]))
        elif verb == "beat" and self.coordinator is not None:
            self.coordinator.on_alive(self.members[name].id, "here")
        elif verb == "digest":
            self.members[name].source.digest()
        else:
            sink = self.members[name].sink
            assert sink is not None
            sink.run(verb)
        self.pump_coordinator()
        self.check()

    def run(self, limit: int = _MAX_STEPS) -> int:
        """Let things happen, without time, until nothing moves, or *limit* steps are done; returns how many were."""
        for done in range(limit):
            ready = [item for item in self.choices() if not (self.hold_writes and item.startswith("write"))]
            if not ready:
                return done
            self.step(ready[0])
        if limit == _MAX_STEPS:
            raise Violation(f"still busy after {limit} steps: {self.network.log[-10:]}")
        return limit

    def tick(self) -> bool:
        """Advance time to the next deadline; False if there is none."""
        times = [item[0] for item in self._timers]
        times += [item for item in (member.next_deadline() for member in self.members.values()) if item is not None]
        if self.coordinator is not None and (deadline := self.coordinator.next_deadline()) is not None:
            times.append(deadline)
        if not times:
            return False
        self.now = max(self.now, min(times))
        due = sorted(item for item in self._timers if item[0] <= self.now)
        self._timers = [item for item in self._timers if item[0] > self.now]
        for _, _, call in due:
            call()
        for member in list(self.members.values()):
            member.on_time(self.now)
        if self.coordinator is not None:
            self.coordinator.on_time(self.now)
        self.pump_coordinator()
        self.check()
        return True

    def settle(self, limit_s: float = 300.0) -> None:
        """Run until nothing moves and no deadline is left."""
        end = self.now + limit_s
        self.run()
        while self.tick():
            self.run()
            if self.now > end:
                raise Violation(f"time goes on and on: {self.network.log[-10:]}")

    def store(self, memory: Memory, rank: int, tag: Tag) -> None:
        """A writer stores into *memory*, wherever that is now."""
        for member in self.members.values():
            slot = member.sink.slot_of(memory) if member.sink is not None else None
            if slot is not None and member.sink is not None:
                shown = member.sink.shown is not None and member.sink.shown.slot == slot.index
                memory.write(slot, shown, rank, tag)
                return
        memory.write(None, False, rank, tag)

    # The coordinator's side.

    def open_channel(self, member: SimMember, join: msg.Join) -> Link:
        """The member dials; Join is the first message."""
        incarnation = join.member
        link = self.network.link(
            incarnation,
            "coordinator",
            lambda message: member.on_message(link, message),
            lambda message: self._hear(incarnation, link, message),
        )
        link.to_b.send(join)
        return link

    def pump_coordinator(self) -> None:
        """Carry out what the coordinator's machine left."""
        machine = self.coordinator
        while machine is not None and machine.out:
            actions, machine.out[:] = list(machine.out), []
            for action in actions:
                match action:
                    case act.Send(to, message):
                        if to in self._channels:
                            self._channels[to].to_a.send(message)
                    case act.Expel(incarnation):
                        link = self._channels.pop(incarnation, None)
                        if link is not None:
                            link.finish("expelled")

    def _hear(self, incarnation: MemberId, link: Link, message: object) -> None:
        machine, now = self.coordinator, self.now
        if machine is None:
            return
        if isinstance(message, msg.Join):
            if incarnation in self._channels:
                link.cut("here already")  # the one that is there stays
                return
            self._channels[incarnation] = link
            machine.on_join(message, b"", now)
            return
        if self._channels.get(incarnation) is not link:
            return
        if isinstance(message, Gone):
            del self._channels[incarnation]
            machine.on_lost(incarnation, "lost", message.cause, now)
        else:
            dispatch.member_to_coordinator(machine, incarnation, message, now)

    def _contested(self, member: SimMember) -> bool:
        """Whether a sign of life of that member would decide who has its place."""
        return self.coordinator is not None and member.alive and member.id in self.coordinator.claims.contested()

    # The rules.

    def check(self) -> None:
        """What must hold after every step."""
        sequences: dict[tuple[str, int], Identity] = {}
        for member in (*self.members.values(), *self.retired):
            if member.sink is None:
                continue
            if member.alive:
                member.sink.check()
            if member.profile.group and member.profile.world_size > 1:
                for shown in member.sink.shows:
                    first = sequences.setdefault((member.profile.group, shown.seq), shown.identity)
                    if first != shown.identity:
                        raise Violation(f"number {shown.seq} of {member.profile.group} is {first} and {shown.identity}")

    def _add(self, profile: Profile, *, taker: bool) -> SimMember:
        member = self.members[profile.name] = SimMember(self, profile, taker=taker)
        member.connect()
        return member
