"""A sink's links to the sources it lands from: dialled here, the data endpoint granted here."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from wtransport.backends.base import Endpoint, OwnerEndpoint, Unavailable
from wtransport.backends.hostfacts import HostFacts
from wtransport.backends.select import Choice, choose
from wtransport.control.codec import Codec
from wtransport.control.dial import connect
from wtransport.errors import InternalError, PeerLostError, ProtocolError, TransportError, exhausted
from wtransport.service.limits import channel_limits
from wtransport.session import messages as msg

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.control.channel import Channel
    from wtransport.service.context import Context
    from wtransport.session.identity import MemberId

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0


class Upstream:
    """One link to one source; re-dialled until the source leaves the roster."""

    def __init__(self, record: msg.MemberRecord) -> None:
        self.record = record
        self.channel: Channel | None = None
        self.endpoint: OwnerEndpoint | None = None
        self.choice: Choice | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.cause: TransportError | None = None
        # What the source said before its data endpoint was known here: nothing can be granted without one.
        self.early: list[object] = []

    @property
    def ready(self) -> bool:
        """Whether both the channel and the data endpoint are up."""
        return self.endpoint is not None and self.endpoint.broken is None

    def why(self) -> TransportError:
        """Why it ended."""
        return self.cause or PeerLostError("the link ended", peer=self.record.name)

    def break_off(self, cause: TransportError) -> None:
        """End channel and endpoint; never waits."""
        if self.cause is None:
            self.cause = cause
        if self.channel is not None:
            self.channel.abort(cause)
        if self.endpoint is not None:
            self.endpoint.abort(cause)
        self.ended.set()


class Upstreams:
    """The links of one sink.

    Args:
        context: The member's means.
        on_message: Called with (source, message).
        on_ready: A link to the source is up.
        on_gone: It broke, and why.
        binding: The number of the present binding, to be said first.
    """

    def __init__(
        self,
        context: Context,
        on_message: Callable[[MemberId, Any], None],
        on_ready: Callable[[MemberId], None],
        on_gone: Callable[[MemberId, TransportError], None],
        binding: Callable[[], int],
    ) -> None:
        self._context = context
        self._on_message = on_message
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._binding = binding
        self._codec = Codec(msg.MESSAGES, max_frame_nbytes=context.config.max_frame_nbytes)
        self._epochs = 0
        # Why a link that is wanted is not up: by its member, until it is.
        self.failures: dict[MemberId, TransportError] = {}
        self.links: dict[MemberId, Upstream] = {}

    def want(self, record: msg.MemberRecord) -> None:
        """Have a link to that member, now and until it leaves."""
        if record.member not in self.links:
            link = self.links[record.member] = Upstream(record)
            link.task = self._context.spawn(self._keep(link))

    def keep_only(self, members: dict[MemberId, msg.MemberRecord]) -> None:
        """Members that are not on the roster any more are given up."""
        for member in [item for item in self.links if item not in members]:
            self.drop(member, PeerLostError(f"{self.links[member].record.name} is not a member any more"))

    def drop(self, member: MemberId, cause: TransportError) -> None:
        """Give a link up."""
        link = self.links.pop(member, None)
        self.failures.pop(member, None)
        if link is None:
            return
        link.break_off(cause)
        if link.task is not None:
            link.task.cancel()
        if link.endpoint is not None:
            # Broken already or not: its end has not been told, and the cancelled task will not tell it.
            link.endpoint = None
            self._on_gone(member, cause)

    def drop_all(self, cause: TransportError) -> None:
        """Give every link up."""
        for member in list(self.links):
            self.drop(member, cause)

    def send(self, member: MemberId, message: object) -> None:
        """Send to a source; a link that is down has been, or will be, reported as gone."""
        link = self.links.get(member)
        if link is not None and link.channel is not None and not link.channel.closed:
            try:
                link.channel.send_nowait(message)
            except PeerLostError:
                return

    async def _keep(self, link: Upstream) -> None:
        pause_s = _FIRST_RETRY_S
        while self.links.get(link.record.member) is link:
            link.ended.clear()
            link.cause = None
            link.early.clear()
            try:
                await self._open(link)
                pause_s = _FIRST_RETRY_S
                self.failures.pop(link.record.member, None)
                self._on_ready(link.record.member)
                for message in link.early:
                    self._on_message(link.record.member, message)
                link.early.clear()
                await link.ended.wait()
            except Exception as caught:
                error = _typed(caught)
                self.failures[link.record.member] = error.with_fields(peer=link.record.name)
                link.break_off(error)
            if link.endpoint is not None:
                link.endpoint = None
                self._on_gone(link.record.member, link.why())
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    async def _open(self, link: Upstream) -> None:
        context, record = self._context, link.record
        timeout_s = context.config.connect_timeout_s
        errors: list[TransportError] = []
        channel = None
        for url in record.urls:
            try:
                hello = context.hello(record.member)
                channel = await connect(
                    url, secret=context.secret, hello=hello, codec=self._codec, deadline_s=timeout_s, limits=channel_limits(context.config)
                )
                break
            except TransportError as error:
                errors.append(error)
        if channel is None:
            raise errors[-1] if errors else PeerLostError(f"{record.name} has no address")
        link.channel = channel
        if channel.peer_hello.get("member") != record.member:
            raise ProtocolError(f"{record.name} answered as another incarnation", peer=record.name)
        channel.attach(partial(self._message, link), partial(self._closed, link))
        link.choice = self._choose(channel.peer_hello)
        self._epochs += 1
        token, epoch = secrets.token_bytes(32), self._epochs
        listener = context.listeners[link.choice.backend]
        admission = listener.admit(token, epoch, record.name)
        try:
            channel.send_nowait(msg.DataOffer(link.choice.backend, listener.address, token, epoch, link.choice.reason))
            channel.send_nowait(msg.Bound(self._binding()))
            endpoint = await self._admitted(link, admission, timeout_s)
        finally:
            admission.cancel()
        endpoint.on_broken = partial(self._broken, link)
        if link.cause is not None:
            endpoint.abort(link.cause)
            raise link.cause
        link.endpoint = endpoint

    @staticmethod
    async def _admitted(link: Upstream, admission: asyncio.Future[OwnerEndpoint], timeout_s: float) -> OwnerEndpoint:
        """The source's data endpoint, unless the link ends first: the source says so when it cannot open one."""
        ended = asyncio.ensure_future(link.ended.wait())
        try:
            await asyncio.wait({admission, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        finally:
            ended.cancel()
        if admission.done():
            return admission.result()
        if link.ended.is_set():
            raise link.why()
        raise PeerLostError(f"{link.record.name} did not open its data endpoint in {timeout_s:g} s")

    def _choose(self, hello: dict[str, object]) -> Choice:
        context = self._context
        theirs = hello.get("backends")
        found = dict(context.capabilities)
        for name in found:
            if not isinstance(theirs, list) or name not in theirs:
                found[name] = Unavailable("the other end does not have it")
        remote = HostFacts.from_wire(hello.get("facts"))
        return choose(context.facts, remote, ("cpu", "cpu"), found, context.requested)

    def _message(self, link: Upstream, message: object) -> None:
        if link.endpoint is None:
            link.early.append(message)
        else:
            self._on_message(link.record.member, message)

    def _closed(self, link: Upstream, error: TransportError | None) -> None:
        why = f"the link to the source ended: {error.message}" if error is not None else "the source closed the link"
        lost = PeerLostError(why, peer=link.record.name)
        lost.__cause__ = error
        link.break_off(lost)

    def _broken(self, link: Upstream, endpoint: Endpoint, error: TransportError) -> None:
        link.break_off(error)


def _typed(caught: Exception) -> TransportError:
    if isinstance(caught, TransportError):
        return caught
    error = exhausted(caught, "open a link") or InternalError(f"the link failed: {caught!r}")
    error.__cause__ = caught
    return error
