"""Dispatch: which method of a machine each message is for. Whatever a driver must do about a message, it does before or after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.errors import ProtocolError
from wtransport.session import messages as msg

if TYPE_CHECKING:
    from wtransport.session.coordinator.machine import Coordinator
    from wtransport.session.identity import MemberId
    from wtransport.session.sink.machine import Sink
    from wtransport.session.source.machine import Source


def coordinator_to_source(machine: Source, message: object, now: float) -> None:
    """The coordinator's word to a source; what is for a sink is nothing to it."""
    match message:
        case msg.PutAdmitted():
            machine.on_admitted(message, now)
        case msg.PutKnown():
            machine.on_known(message, now)
        case msg.PutRefused():
            machine.on_refused(message, now)
        case msg.PutRanks():
            machine.on_ranks(message)
        case msg.Overtaken():
            machine.on_overtaken(message, now)
        case msg.Withdrawn():
            machine.on_withdrawn(message, now)
        case msg.StragglerKept():
            machine.on_straggler_kept(message, now)
        case msg.PublicationBegun():
            machine.on_publication(message.publication, now)


def coordinator_to_sink(machine: Sink, message: object, now: float) -> None:
    """The coordinator's word to a sink; what is for a source is nothing to it."""
    match message:
        case msg.PublicationBegun():
            machine.on_publication(message.publication, message.rewind, now)
        case msg.Overtaken():
            machine.on_overtaken(message, now)
        case msg.Withdraw():
            machine.on_withdraw(message, now)
        case msg.Available():
            machine.catchup.on_available(message, now)
        case msg.Unavailable():
            machine.catchup.on_unavailable(message.identity, now)
        case msg.Show():
            machine.shows.on_show(message)
            machine.advance(now)
        case msg.Release():
            machine.shows.on_release(message.identity)
            machine.advance(now)


def sink_to_source(machine: Source, sink: MemberId, message: object, now: float) -> None:
    """A sink's message.

    Raises:
        ProtocolError: If it is not for a source.
    """
    match message:
        case msg.Bound():
            machine.on_bound(sink, message, now)
        case msg.Mismatch():
            machine.on_mismatch(sink, message, now)
        case msg.Grant():
            machine.on_grant(sink, message, now)
        case msg.Recall():
            machine.on_recall(sink, message)
        case msg.Behind():
            machine.on_behind(sink, message, now)
        case msg.Installed():
            machine.on_installed(sink, message, now)
        case msg.Failed():
            machine.on_failed(sink, message, now)
        case msg.Ahead():
            machine.on_ahead(sink, message, now)
        case msg.Pull():
            machine.on_pull(sink, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is not for a source")


def source_to_sink(machine: Sink, source: MemberId, message: object, now: float) -> None:
    """A source's message.

    Raises:
        ProtocolError: If it is not for a sink.
    """
    match message:
        case msg.SourceManifest():
            machine.on_source_manifest(source, message, now)
        case msg.Begin():
            machine.on_begin(source, message, now)
        case msg.Part():
            machine.on_part(source, message, now)
        case msg.Return():
            machine.on_return(source, message, now)
        case msg.Misfit():
            machine.on_misfit(message)
        case msg.PullRefused():
            machine.catchup.on_pull_refused(source, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is not for a sink")


def member_to_coordinator(machine: Coordinator, member: MemberId, message: object, now: float) -> None:
    """A message of a member that has joined.

    Raises:
        ProtocolError: If it is not for the coordinator.
    """
    match message:
        case msg.Leave():
            machine.on_leave(member, message, now)
        case msg.TermRefused():
            machine.on_term_refused(message)
        case msg.Redeclare():
            machine.on_redeclare(member, message, now)
        case msg.PutRequest():
            machine.on_put(member, message, now)
        case msg.PutSettled():
            machine.on_put_settled(member, message, now)
        case msg.PutFailed():
            machine.on_put_failed(message, now)
        case msg.WithdrawRequest():
            machine.on_withdraw_request(message, now)
        case msg.HoldingEnded():
            machine.on_holding_ended(member, message)
        case msg.Bound():
            machine.on_bound(member, message, now)
        case msg.Installed():
            machine.on_installed(member, message, now)
        case msg.Dropped():
            machine.on_dropped(member, message, now)
        case msg.Behind():
            machine.on_behind(member, message)
        case msg.Superseded():
            machine.on_superseded(member, message)
        case msg.Ready():
            machine.on_ready(member, message)
        case msg.ShowTaken():
            machine.on_show_taken(member, message)
        case msg.SteerRequest():
            machine.steer(member, message, now)
        case msg.Straggler():
            machine.on_straggler(member, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is not for the coordinator")
