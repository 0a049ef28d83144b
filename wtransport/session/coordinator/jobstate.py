"""What a coordinator knows of its job, and how that state changes and is told to the members."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.coordinator.claims import Claims
from wtransport.session.coordinator.groups import Group
from wtransport.session.coordinator.ledger import Ledger, VersionState
from wtransport.session.coordinator.roster import Roster
from wtransport.session.identity import NO_PUBLICATION, Identity, MemberId, Publication, Term


@dataclass(frozen=True)
class _Queued:
    """What waits for a rebuilt ledger, or for a publication; gone with its member, and once nobody waits for the answer any more."""

    member: MemberId | None
    call: Callable[[float], None]
    expires: float


class JobState:
    """The job's roster, ledger, groups and publication.

    Args:
        incarnation: 128 random bits of this start, 32 hex digits.
        rebuild_s: How long the members of a declared roster are waited for (P6).
        answer_timeout_s: How long sinks may take to answer a withdrawal.
        first_term: Above the terms of earlier starts if it can be; where it is not, members say so, and a higher one is taken (P6).

    Attributes:
        host: The member whose process this coordinator lives in, if any: it cannot be excluded by those who need it.
    """

    def __init__(self, incarnation: str, *, rebuild_s: float, answer_timeout_s: float, first_term: int = 1) -> None:
        self.out: list[act.Action] = []
        self.term = Term(first_term, incarnation)
        self.roster = Roster()
        self.claims = Claims()
        self.ledger = Ledger()
        self.groups: dict[str, Group] = {}
        self.publication: Publication = NO_PUBLICATION
        self.trainers: tuple[MemberId, ...] = ()
        self.dropped: Counter[str] = Counter()
        self.host: MemberId | None = None
        self._n = 0
        self._rewound_to: int | None = None
        self._last: dict[int, int] = {}
        self._declared: dict[MemberId, Publication] = {}
        self._expected: set[MemberId] = set()
        self._rebuilt = False
        self._rebuild_deadline: float | None = None
        self._queued: list[_Queued] = []
        self._rebuild_s = rebuild_s
        self._answer_timeout_s = answer_timeout_s

    def _take_term(self, counter: int) -> None:
        self.term = Term(counter, self.term.incarnation)
        self._n = 0
        # P1: another coordinator of the lower term may have given the same publication: what was begun in it is begun anew.
        self.trainers = ()
        self._send_all((member, msg.NewTerm(self.term)) for member in self.roster.members)

    def _declare(self, record: msg.MemberRecord, declaration: msg.Declaration, now: float) -> None:
        self._declared[record.member] = declaration.publication
        before = self.roster.bindings.get(record.member, declaration.binding)
        self.roster.bindings[record.member] = declaration.binding
        if before != declaration.binding:
            self._let_go(record.member, None)
        for holding in declaration.holdings:
            state = self.ledger.hold(record.member, holding)
            if holding.kind != "slot":
                state.settled.update(holding.parts)  # a trainer holds what its put has ended well for
                state.ranks.update(holding.parts)
        group = self._group(record)
        if group is not None:
            group.join(record.rank, record.member, declaration.shown_seq, declaration.shown)
            for member in group.members.values():
                self._offer(member, anew=True)  # P4: survivors say READY again for what was released when a rank was lost
        if record.role == "generator":
            self._offer(record.member)
        self._announce_newest()
        self._step_groups()

    def _open(self, now: float) -> None:
        """The roster is back, or had its time: what waited is done in the order it came."""
        self._rebuild_deadline = None
        self._expected.clear()
        self._announce_newest()
        self._run_queued(now)

    def _queue(self, member: MemberId | None, call: Callable[[float], None], expires: float = math.inf) -> None:
        self._queued.append(_Queued(member, call, expires))

    def _run_queued(self, now: float) -> None:
        queued, self._queued = self._queued, []
        for item in queued:
            if now < item.expires:
                item.call(now)

    def _begin_publication(self, now: float) -> None:
        trainers = self.roster.complete_trainers()
        if not trainers or trainers == self.trainers or self._rebuild_deadline is not None:
            return
        declared = {self._declared.get(member, NO_PUBLICATION) for member in trainers}
        if len(declared) == 1 and (publication := declared.pop()) > max(self.publication, NO_PUBLICATION):
            # P6: the same incarnations re-declared one publication: puts already admitted go on in it.
            self.trainers, self.publication = trainers, publication
            self._last = {}
            self._send_publication()
            self._run_queued(now)
        else:
            self._start_publication(trainers, rewind_to=None, now=now)

    def _start_publication(self, trainers: tuple[MemberId, ...], *, rewind_to: int | None, now: float) -> None:
        self._n += 1
        floor = max([self.publication, *self._declared.values()])
        if Publication(self.term.counter, self._n) <= floor:
            self._n = floor.n + 1
        self.publication = Publication(self.term.counter, self._n)
        self.trainers = trainers
        self._rewound_to = rewind_to
        self._last = {}
        for member in trainers:
            self._declared[member] = self.publication
        self._send_publication()
        self._notice("publication", "", rewind_to, f"publication {self.publication} of {len(trainers)} trainer rank(s)")
        self._run_queued(now)

    def _send_publication(self) -> None:
        begun = msg.PublicationBegun(self.publication, self.trainers, self._rewound_to is not None)
        self._send_all((member, begun) for member in self.roster.members)

    def _lowers(self, message: msg.PutRequest) -> bool:
        """Whether a rewind must begin a publication: not when another rank of the same rewind has begun it."""
        if self._rewound_to == message.version and message.rank not in self._last:
            return False
        # Of any publication: a generator that is ahead keeps a higher version of an earlier one.
        held = (item.identity.version for item in self.ledger.versions.values() if item.available)
        return message.version <= max([*self._last.values(), *held], default=-1)

    def _admission(self, message: msg.PutRequest) -> object:
        identity = Identity(self.publication, message.version)
        state = self.ledger.versions.get(identity)
        committed = state if state is not None and state.committed else self.ledger.committed_version(message.version)
        if committed is not None and not message.rewind and (state is None or message.rank in state.ranks):
            return self._known(message, committed)
        if state is not None and message.rank in state.ranks:
            why = "was withdrawn; the number is dead in this publication" if state.dead else "is put or in flight already"
            return msg.PutRefused(message.request, "version", f"version {message.version} {why}")
        last = self._last.get(message.rank, -1)
        if message.version <= last:
            return msg.PutRefused(message.request, "version", f"version {message.version} is not above {last}, the last one put")
        if state is not None and state.dead:
            return msg.PutRefused(message.request, "withdrawn", f"version {message.version} was withdrawn by {state.withdrawn_by}")
        highest = max(self._last.values(), default=-1)
        if state is None and message.version < highest:
            others = {rank: version for rank, version in self._last.items() if rank != message.rank}
            text = f"rank {message.rank} puts version {message.version}, other ranks went on to {others}"
            return msg.PutRefused(message.request, "version", text)
        return msg.PutAdmitted(message.request, identity)

    def _known(self, message: msg.PutRequest, committed: VersionState) -> object:
        """P3: a committed version is a no-op with the same digest and an error with another."""
        if message.digest is None:
            return msg.PutKnown(message.request, committed.identity, True)
        if committed.digests.get(message.rank, message.digest) == message.digest and message.rank in committed.digests:
            return msg.PutKnown(message.request, committed.identity, False)
        text = f"version {message.version} is committed with other bytes, or its digest is not known; put a higher version, or rewind=True"
        return msg.PutRefused(message.request, "version", text)

    def _withdraw(self, state: VersionState, by: str, now: float) -> None:
        state.withdrawn_by = by
        state.awaiting = {record.member for record in self.roster.generators}
        state.withdraw_deadline = now + self._answer_timeout_s
        self._send_all((member, msg.Withdraw(state.identity)) for member in sorted(state.awaiting))
        self._conclude_withdrawal(state)

    def _withdrawal_answer(self, state: VersionState, member: MemberId, *, installed: bool, now: float) -> None:
        state.awaiting.discard(member)
        state.installed = state.installed or installed
        self._conclude_withdrawal(state)

    def _conclude_withdrawal(self, state: VersionState) -> None:
        if state.awaiting or state.withdraw_deadline is None:
            return
        state.withdraw_deadline = None
        state.dead = not state.installed
        if state.dead:
            state.holders.clear()
        withdrawn = msg.Withdrawn(state.identity, state.withdrawn_by, state.installed)
        # Not only to a full set: the others of one that lost a rank still wait for this.
        self._send_all((record.member, withdrawn) for record in self.roster.trainers)
        self._notice("withdrawn" if state.dead else "withdrawal refused", "", state.identity.version, state.withdrawn_by)

    def _announce(self, state: VersionState, *, again: bool = False) -> None:
        """Tell sinks that do not hold it; once when it becomes available, again when every rank's put is in."""
        if state.available and (again or not state.announced) and state is self.ledger.newest_available():
            state.announced = True
            message = msg.Available(state.identity, state.world_size, state.whole, state.parts)
            self._send_all((item.member, message) for item in self.roster.generators if item.member not in state.holders)

    def _announce_newest(self) -> None:
        """A member has declared what it holds: that may be what others lost, or never heard of."""
        newest = self.ledger.newest_available()
        if newest is not None and self._rebuild_deadline is None:
            self._announce(newest)

    def _offer(self, member: MemberId, *, anew: bool = False) -> None:
        """The newest available version, for a sink that is new, bound anew, or behind; *anew*: also for one that holds it."""
        state = self.ledger.newest_available()
        if state is not None and (anew or member not in state.holders):
            self.out.append(act.Send(member, msg.Available(state.identity, state.world_size, state.whole, state.parts)))

    def _let_go(self, member: MemberId, identity: Identity | None) -> None:
        """P9: *member* holds *identity* (None: anything) no more; who pulls is told who else holds it, or that nobody does."""
        newest = self.ledger.newest_available()
        held = newest is not None and member in newest.holders and identity in (None, newest.identity)
        lost = self.ledger.drop(member, identity)
        for state in lost:
            state.announced = False  # should a holder come back, the others must hear of it
        if self._rebuild_deadline is not None:
            return
        for state in lost:
            self._unavailable(state)
        if newest is not None and held and newest not in lost:
            self._announce(newest, again=True)

    def _unavailable(self, state: VersionState) -> None:
        self._notice("unavailable", "", state.identity.version, "its last holder is gone")
        self._send_all((item.member, msg.Unavailable(state.identity)) for item in self.roster.generators)
        newest = self.ledger.newest_available()
        if newest is not None:
            newest.announced = False
            self._announce(newest)

    def _announce_view(self) -> None:
        excluded = tuple(sorted(self.roster.excluded))
        view = msg.View(self.roster.view, tuple(self.roster.members.values()), excluded)
        self._send_all((member, view) for member in self.roster.members)

    def _notice(self, kind: str, name: str, version: int | None, detail: str) -> None:
        notice = msg.EventNotice(kind, name, version, detail)
        self.out.append(act.Emit(notice))
        self._send_all((member, notice) for member in self.roster.members)

    def _group(self, record: msg.MemberRecord) -> Group | None:
        if record.role != "generator" or record.world_size < 2:
            return None
        group = self.groups.get(record.group)
        if group is None or (group.size != record.world_size and not group.members):
            group = self.groups[record.group] = Group(record.world_size)
        return group

    def _step_groups(self) -> None:
        if self._rebuild_deadline is None:
            for group in self.groups.values():
                self._send_all(group.step())

    def _send_all(self, messages: Iterable[tuple[MemberId, object]]) -> None:
        self.out += [act.Send(member, message) for member, message in messages]
