"""The coordinator's machine: admits members and puts, keeps the ledger, and is the one voice on overtaken, withdrawn and shown."""

from __future__ import annotations

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.coordinator.steering import Steering
from wtransport.session.identity import NO_PUBLICATION, MemberId


class Coordinator(Steering):
    """Sans-IO coordinator of one job: events in, actions out."""

    # Membership.

    def on_join(self, join: msg.Join, beat_token: bytes, now: float) -> None:
        """Admit, refuse, or (while the ledger is being rebuilt) queue a member that no roster names (P6)."""
        declaration = join.declaration
        if declaration.term.counter >= self.term.counter and declaration.term != self.term:
            self._take_term(declaration.term.counter + 1)
        if declaration.roster and not self._rebuilt:
            self._rebuilt = True  # once: the roster may name incarnations that will never come back
            self._expected = {item.member for item in declaration.roster}
            self._rebuild_deadline = now + self._rebuild_s
        if self._rebuild_deadline is not None and join.member not in self._expected:
            self._queue(join.member, lambda later: self.on_join(join, beat_token, later))
            return
        if declaration.term != self.term:
            known = set(declaration.excluded) - self.roster.admitted
            self.roster.excluded = dict.fromkeys(known, "excluded before the coordinator restarted") | self.roster.excluded
        refusal = self.roster.refusal(join)
        if refusal is not None:
            self.out += [act.Send(join.member, refusal), act.Expel(join.member)]
            return
        holders, in_the_way = self.roster.holders(join), self.roster.misfits(join)
        # P6: who was a member before the coordinator restarted comes back to its place, whoever found it empty meanwhile.
        returns = declaration.term != self.term and any(item.member == join.member for item in declaration.roster)
        if not join.takeover:
            in_the_way += [item for item in holders if not (returns and item.member in self.roster.newcomers)]
        if in_the_way:
            self.claims.make(join, beat_token, in_the_way, now)
            return
        back = f"{join.name} had this place before the coordinator restarted, and is back"
        for holder in holders:
            self.fence(holder, back if returns else f"a newer incarnation of {join.name} took this member's place", now)
        if join.name in self.roster.excluded:  # it was replaced once too often
            self.on_join(join, beat_token, now)
            return
        self._rebuilt = True
        record = self.roster.admit(join, self.term.counter)
        self.out.append(act.Send(join.member, msg.Welcome(self.term, record.ordinal, self.publication, beat_token)))
        if self.publication != NO_PUBLICATION:
            begun = msg.PublicationBegun(self.publication, self.trainers, self._rewound_to is not None)
            self.out.append(act.Send(join.member, begun))
        # The roster first: what is offered next names members the newcomer must be able to find.
        self._announce_view()
        self._declare(record, declaration, now)
        self._notice("joined", record.name, None, f"{record.role} rank {record.rank} of {record.world_size}")
        self.watch_health()
        self._expected.discard(join.member)
        if self._rebuild_deadline is not None and not self._expected:
            self._open(now)
        self._begin_publication(now)

    def on_redeclare(self, member: MemberId, message: msg.Redeclare, now: float) -> None:
        """A member's answer to a higher term."""
        record = self.roster.members.get(member)
        if record is not None:
            self._declare(record, message.declaration, now)
            self._begin_publication(now)

    def on_term_refused(self, message: msg.TermRefused) -> None:
        """P6: a member follows a term that is not ours: take a higher one and ask all to re-declare."""
        if message.term != self.term:
            self._take_term(max(self.term.counter, message.term.counter) + 1)

    def on_leave(self, member: MemberId, message: msg.Leave, now: float) -> None:
        """A member leaves in order."""
        self.on_lost(member, "left", message.reason, now)

    def on_stalled(self, member: MemberId, stalled: bool, age_s: float) -> None:
        """A member beats, and its Python does not go on: it is slow, not lost (or it goes on again)."""
        record = self.roster.members.get(member)
        if record is not None:
            since = f"no Python has run on its service thread for {age_s:.1f} s: something holds its GIL"
            self._notice("stalled" if stalled else "going on", record.name, None, since if stalled else "its Python runs again")

    def on_alive(self, member: MemberId, where: str) -> None:
        """A member whose place others claim gives a sign of life: they are refused. *where* says how to find it."""
        record = self.roster.members.get(member)
        for claim in self.claims.alive(member) if record is not None else ():
            assert record is not None
            self.out += [act.Send(claim.join.member, claim.refusal(record, where)), act.Expel(claim.join.member)]

    def on_lost(self, member: MemberId, kind: str, cause: str, now: float) -> None:
        """A member is gone (``lost``, ``left``, ``fenced``, ``excluded``): tell all, and go on without it."""
        self._queued = [item for item in self._queued if item.member != member]
        free = self.claims.gone(member)
        record = self.roster.remove(member, kind, cause)
        if record is not None:
            self._go_on_without(record, kind, cause, now)
        for claim in free:
            self.on_join(claim.join, claim.beat_token, now)

    def _go_on_without(self, record: msg.MemberRecord, kind: str, cause: str, now: float) -> None:
        member = record.member
        self.out.append(act.Expel(member))
        self._notice(kind, record.name, None, cause)
        if kind in ("lost", "fenced"):
            self.count_loss(record, cause)
        self.watch_health()
        self._declared.pop(member, None)
        for state in self.ledger.versions.values():
            if member in state.awaiting:
                self._withdrawal_answer(state, member, installed=False, now=now)
        group = self._group(record)
        if group is not None and group.members.get(record.rank) == member:
            self._send_all(group.lose(record.rank))
        self._announce_view()
        if record.role == "trainer" and member in self.trainers:
            self._end_puts(record, f"{kind}: {cause}", now)
            self.trainers = ()
        self._let_go(member, None)

    def _end_puts(self, record: msg.MemberRecord, why: str, now: float) -> None:
        """P3: a rank is gone; no sink can complete a version whose part of that rank is not in: the others need not wait for it."""
        for state in list(self.ledger.versions.values()):
            current = state.identity.publication == self.publication and len(state.settled) < state.world_size
            if current and record.rank not in state.settled and not state.withdrawn_by:
                self._withdraw(state, f"rank {record.rank} ({record.name} {why})", now)

    def on_bound(self, member: MemberId, message: msg.Bound, now: float) -> None:
        """A sink has a new binding: what its old slots held is gone, and it may pull."""
        if member in self.roster.members:
            before = self.roster.bindings.get(member, message.binding)
            self.roster.bindings[member] = message.binding
            if before != message.binding:
                self._let_go(member, None)
            self._offer(member)

    # Puts.

    def on_put(self, member: MemberId, message: msg.PutRequest, now: float) -> None:
        """Admit a rank's put, or say why not; it waits while there is no publication."""
        record = self.roster.members.get(member)
        if record is None or record.role != "trainer":
            self.dropped["put"] += 1
            return
        if self._rebuild_deadline is not None or member not in self.trainers:
            self._queue(member, lambda later: self.on_put(member, message, later), expires=now + self._answer_timeout_s)
            return
        if message.rewind and self._lowers(message):
            self._start_publication(self.trainers, rewind_to=message.version, now=now)
        answer = self._admission(message)
        self.out.append(act.Send(member, answer))
        if isinstance(answer, msg.PutAdmitted):
            state = self.ledger.get(answer.identity, len(self.trainers))
            state.ranks.add(message.rank)
            self._last[message.rank] = message.version
            if len(self.trainers) > 1:
                ranks = msg.PutRanks(answer.identity, tuple(sorted(state.ranks)))
                self.out += [act.Send(self.trainers[rank], ranks) for rank in sorted(state.ranks)]

    def on_put_settled(self, member: MemberId, message: msg.PutSettled, now: float) -> None:
        """A rank's put ended well."""
        state = self.ledger.versions.get(message.identity)
        if state is None:
            self.dropped["settled"] += 1
            return
        state.settled.add(message.rank)
        if message.holding is not None:
            self.ledger.hold(member, message.holding)
        if len(state.settled) == state.world_size:
            self._notice("version complete", "", message.identity.version, f"installed: {state.installed}, committed: {state.committed}")
        self._announce(state, again=len(state.settled) == state.world_size)
        self.ledger.prune()

    def on_put_failed(self, message: msg.PutFailed, now: float) -> None:
        """A rank's put failed: no sink can complete the version any more."""
        state = self.ledger.versions.get(message.identity)
        if state is not None and not state.withdrawn_by:
            self._withdraw(state, f"rank {message.rank} ({message.reason})", now)

    def on_withdraw_request(self, message: msg.WithdrawRequest, now: float) -> None:
        """P3: ask every sink, then say whether the version stands."""
        if self._rebuild_deadline is not None:
            self._queue(None, lambda later: self.on_withdraw_request(message, later))
            return
        state = self.ledger.get(message.identity, max(1, len(self.trainers)))
        if not state.withdrawn_by:
            self._withdraw(state, f"rank {message.rank}", now)

    def on_dropped(self, member: MemberId, message: msg.Dropped, now: float) -> None:
        """A sink had not installed what is withdrawn."""
        state = self.ledger.versions.get(message.identity)
        if state is not None and member in state.awaiting:
            self._withdrawal_answer(state, member, installed=False, now=now)

    def on_installed(self, member: MemberId, message: msg.Installed, now: float) -> None:
        """A sink holds a version whole."""
        if member not in self.roster.members or message.binding != self.roster.bindings.get(member, message.binding):
            self.dropped["installed"] += 1
            return
        state = self.ledger.hold(member, message.holding)
        if member in state.awaiting:
            self._withdrawal_answer(state, member, installed=True, now=now)
        self._announce(state, again=len(state.whole) == 1)  # the first whole holder: who could not combine the parts may pull it

    def on_holding_ended(self, member: MemberId, message: msg.HoldingEnded) -> None:
        """A holder let go of a version."""
        self._let_go(member, message.identity)

    def on_behind(self, member: MemberId, message: msg.Behind) -> None:
        """A sink had no slot in time: it will pull, so tell it from whom."""
        record = self.roster.members.get(member)
        if record is not None:
            self._notice("behind", record.name, message.identity.version, message.reason)
            self._offer(member)

    def on_superseded(self, member: MemberId, message: msg.Superseded) -> None:
        """P2: overtaken is said here, once per (version, sink), to all ranks and the sink."""
        state = self.ledger.get(message.identity, max(1, len(self.trainers)))
        if member not in state.overtaken:
            state.overtaken.add(member)
            overtaken = msg.Overtaken(message.identity, member, message.by)
            self.out += [act.Send(target, overtaken) for target in (*self.trainers, member)]

    # Groups.

    def on_ready(self, member: MemberId, message: msg.Ready) -> None:
        """P4: a rank keeps a verified version."""
        record = self.roster.members.get(member)
        group = self._group(record) if record is not None else None
        if record is not None and group is not None and group.members.get(record.rank) == member:
            group.ready[record.rank].add(message.identity)
            self._step_groups()

    def on_show_taken(self, member: MemberId, message: msg.ShowTaken) -> None:
        """P4: a rank's user was given the number."""
        record = self.roster.members.get(member)
        group = self._group(record) if record is not None else None
        if record is not None and group is not None and group.members.get(record.rank) == member:
            group.taken[record.rank] = message.seq
            self._step_groups()

    # Time.

    def next_deadline(self) -> float | None:
        """When ``on_time`` has something to do next."""
        times = [item.withdraw_deadline for item in self.ledger.versions.values() if item.withdraw_deadline is not None]
        if self._rebuild_deadline is not None:
            times.append(self._rebuild_deadline)
        return min(times, default=None)

    def on_time(self, now: float) -> None:
        """The roster had its time; sinks that do not answer a withdrawal count as not installed."""
        if self._rebuild_deadline is not None and self._rebuild_deadline <= now:
            self._open(now)
            self._begin_publication(now)
        for state in list(self.ledger.versions.values()):
            if state.withdraw_deadline is not None and state.withdraw_deadline <= now:
                for member in list(state.awaiting):
                    self._withdrawal_answer(state, member, installed=False, now=now)
