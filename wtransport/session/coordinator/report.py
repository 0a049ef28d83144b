"""report: every member as an orchestrator sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wtransport.session.identity import Identity, MemberId
from wtransport.session.messages import MemberRecord, MemberStatus

if TYPE_CHECKING:
    from wtransport.session.coordinator.jobstate import JobState


@dataclass(frozen=True)
class Pulse:
    """A live member's heartbeat: ages in seconds, and whether its Python runs."""

    seen_s: float
    progress_s: float
    stalled: bool


def report(state: JobState, pulses: Mapping[MemberId, Pulse]) -> tuple[MemberStatus, ...]:
    """Live members in order of admission, then those that are gone; without a pulse (the coordinator's own member) one is fresh."""
    live = sorted(state.roster.members.values(), key=lambda item: item.ordinal)
    names = {item.name for item in live}
    gone = [item for name, item in state.roster.departed.items() if name not in names]
    rows = [_live(state, record, pulses.get(record.member, Pulse(0.0, 0.0, stalled=False))) for record in live]
    for departure in gone:
        reason = state.roster.excluded.get(departure.record.name)
        kind, cause = ("excluded", reason) if reason is not None else (departure.kind, departure.cause)
        rows.append(MemberStatus(departure.record, kind, cause, None, None, None, None, state.roster.losses[departure.record.name]))
    return tuple(rows)


def _live(state: JobState, record: MemberRecord, pulse: Pulse) -> MemberStatus:
    held = max((item.identity for item in state.ledger.versions.values() if record.member in item.holders), default=None)
    kind, cause = ("stalled", f"no Python has run there for {pulse.progress_s:.1f} s") if pulse.stalled else ("live", "")
    lag = _lag(state, held)
    return MemberStatus(record, kind, cause, held, lag, pulse.seen_s, pulse.progress_s, state.roster.losses[record.name])


def _lag(state: JobState, held: Identity | None) -> int | None:
    newest = state.ledger.newest_available()
    if newest is None or held is None:
        return None
    # Numbers of different publications say nothing about each other: then it is at least one version behind.
    behind = newest.identity.version - held.version
    return 0 if held >= newest.identity else max(1, behind) if held.publication != newest.identity.publication else behind
