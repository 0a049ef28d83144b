"""A member's side of membership: which coordinator it follows, what it declares, who else is there (P5, P6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wtransport.session import messages as msg
from wtransport.session.identity import NO_PUBLICATION, NO_TERM, Identity, MemberId, Publication, Term


@dataclass(frozen=True)
class Profile:
    """Who a member is for as long as its transport lives; only its incarnation is redrawn."""

    role: str
    group: str
    rank: int
    world_size: int
    name: str


class Membership:
    """Term, roster and publication as one member knows them.

    Args:
        profile: Who the member is.
        draw: Draws a new incarnation (128 random bits, hex): one per admission (P5).
        takeover: Whether the first admission may take the place of a live member.
    """

    def __init__(self, profile: Profile, draw: Callable[[], MemberId], *, takeover: bool = False) -> None:
        self.profile = profile
        self.member = draw()
        self.term: Term = NO_TERM
        self.publication: Publication = NO_PUBLICATION
        self.members: dict[MemberId, msg.MemberRecord] = {}
        self.excluded: tuple[str, ...] = ()
        self.view = 0
        self.admitted = False
        self._draw = draw
        self._takeover = takeover

    def join(self, urls: tuple[str, ...], holdings: tuple[msg.Holding, ...], binding: int, seq: int, shown: Identity | None) -> msg.Join:
        """What to send first on every connection to a coordinator."""
        profile = self.profile
        place = (profile.role, profile.group, profile.rank, profile.world_size, profile.name)
        return msg.Join(*place, self.member, urls, self.declaration(holdings, binding, seq, shown), self._takeover)

    def on_admitted(self) -> None:
        """Welcome: who comes back later, after another took this place, does not take it again."""
        self.admitted = True
        self._takeover = False

    def declaration(self, holdings: tuple[msg.Holding, ...], binding: int, seq: int, shown: Identity | None) -> msg.Declaration:
        """What a new coordinator needs to rebuild its ledger (P6)."""
        roster = tuple(self.members.values())
        return msg.Declaration(self.term, self.publication, holdings, roster, self.excluded, binding, seq, shown)

    def on_term(self, term: Term) -> bool:
        """Follow *term*, or say no: a lower counter, or a tied foreign one, is refused (P6)."""
        if not self.term.accepts(term):
            return False
        self.term = term
        return True

    def on_view(self, message: msg.View) -> None:
        """The members now."""
        self.view = message.view
        self.members = {item.member: item for item in message.members}
        self.excluded = message.excluded

    def on_publication(self, message: msg.PublicationBegun) -> bool:
        """A publication began; a lower one is refused (P1)."""
        if message.publication < self.publication:
            return False
        self.publication = message.publication
        return True

    def redraw(self) -> MemberId:
        """P5: lost, fenced or excluded: a new incarnation, after endpoints and grants of the old one were dropped."""
        self.member = self._draw()
        self.admitted = False
        return self.member

    def generators(self) -> dict[MemberId, str]:
        """Where puts go: member id to name."""
        return {item.member: item.name for item in self.members.values() if item.role == "generator"}

    def trainers(self) -> dict[MemberId, msg.MemberRecord]:
        """Members that put."""
        return {key: item for key, item in self.members.items() if item.role == "trainer"}
