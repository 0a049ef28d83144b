"""A source's links from the sinks that land from it: accepted here, the data endpoint dialled from here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from wtransport.errors import PeerLostError, ProtocolError, TransportError
from wtransport.session import messages as msg
from wtransport.session.identity import MemberId

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.backends.base import Endpoint, InitiatorEndpoint
    from wtransport.control.channel import Channel
    from wtransport.service.context import Context


class Downstream:
    """One link from one sink."""

    def __init__(self, member: MemberId, name: str, channel: Channel) -> None:
        self.member = member
        self.name = name
        self.channel = channel
        self.endpoint: InitiatorEndpoint | None = None
        self.backend = ""
        self.cause: TransportError | None = None


class Downstreams:
    """The links of one source.

    Args:
        context: The member's means.
        on_message: Called with (sink, message).
        on_ready: The data endpoint to the sink is up.
        on_gone: The link broke, and why.
    """

    def __init__(
        self,
        context: Context,
        on_message: Callable[[MemberId, Any], None],
        on_ready: Callable[[MemberId], None],
        on_gone: Callable[[MemberId, TransportError], None],
    ) -> None:
        self._context = context
        self._on_message = on_message
        self._on_ready = on_ready
        self._on_gone = on_gone
        self.links: dict[MemberId, Downstream] = {}

    def opened(self, channel: Channel) -> None:
        """A sink has dialled this member's listener."""
        hello = channel.peer_hello
        member, name, to = hello.get("member"), hello.get("name"), hello.get("to")
        if not isinstance(member, str) or not isinstance(name, str) or to != self._context.membership.member:
            channel.abort(ProtocolError(f"a link for another incarnation, from {name!r}"))
            return
        old = self.links.get(MemberId(member))
        if old is not None:
            self._gone(old, PeerLostError("the sink connected anew", peer=name))
        link = self.links[MemberId(member)] = Downstream(MemberId(member), name, channel)
        channel.attach(partial(self._message, link), partial(self._closed, link))

    def endpoint(self, member: MemberId) -> InitiatorEndpoint | None:
        """The data endpoint to *member*, if it is up."""
        link = self.links.get(member)
        return link.endpoint if link is not None else None

    def drop(self, member: MemberId, cause: TransportError) -> None:
        """Give a link up."""
        link = self.links.get(member)
        if link is not None:
            self._gone(link, cause)

    def drop_all(self, cause: TransportError) -> None:
        """Give every link up."""
        for member in list(self.links):
            self.drop(member, cause)

    def send(self, member: MemberId, message: object) -> None:
        """Send to a sink; a link that is down has been, or will be, reported as gone."""
        link = self.links.get(member)
        if link is not None and not link.channel.closed:
            try:
                link.channel.send_nowait(message)
            except PeerLostError:
                return

    def _message(self, link: Downstream, message: object) -> None:
        if isinstance(message, msg.DataOffer):
            self._context.spawn(self._dial(link, message))
        else:
            self._on_message(link.member, message)

    async def _dial(self, link: Downstream, offer: msg.DataOffer) -> None:
        try:
            backend = self._context.backends.get(offer.backend)
            if backend is None:
                raise ProtocolError(f"the sink offers {offer.backend!r}, which is not usable here")
            timeout_s = self._context.config.connect_timeout_s
            endpoint = await backend.connect(offer.addr, token=offer.token, epoch=offer.epoch, peer=link.name, timeout_s=timeout_s)
        except TransportError as error:
            self._gone(link, error)
            return
        if self.links.get(link.member) is not link:
            endpoint.abort(PeerLostError("the link ended while its endpoint was opened"))
            return
        link.endpoint, link.backend = endpoint, offer.backend
        endpoint.on_broken = partial(self._broken, link)
        self._on_ready(link.member)

    def _gone(self, link: Downstream, cause: TransportError) -> None:
        if self.links.get(link.member) is not link:
            return
        del self.links[link.member]
        link.cause = cause
        link.channel.abort(cause)
        if link.endpoint is not None:
            link.endpoint.abort(cause)
        self._on_gone(link.member, cause)

    def _closed(self, link: Downstream, error: TransportError | None) -> None:
        why = f"the link to the sink ended: {error.message}" if error is not None else "the sink closed the link"
        lost = PeerLostError(why, peer=link.name)
        lost.__cause__ = error
        self._gone(link, lost)

    def _broken(self, link: Downstream, endpoint: Endpoint, error: TransportError) -> None:
        self._gone(link, error)
