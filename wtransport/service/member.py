"""One member's service: everything on the background loop, put together."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from typing import TYPE_CHECKING, Any

from wtransport.backends.base import Capabilities
from wtransport.backends.driver import EngineDriver
from wtransport.backends.hostfacts import HostFacts
from wtransport.backends.registry import BackendRegistry
from wtransport.config import TransportConfig, state_dir
from wtransport.control.address import TcpAddress, is_loopback, parse, route_host
from wtransport.control.codec import Codec
from wtransport.control.listener import Listener
from wtransport.control.secret import Secret
from wtransport.errors import BusyError, ClosedError, FencedError, RegistrationError, ResourceError, TransportError
from wtransport.memory.budget import MemoryBudget
from wtransport.recorder.format import Op
from wtransport.recorder.ring import FlightRecorder
from wtransport.service.client import ClientCalls, CoordinatorClient
from wtransport.service.context import Context
from wtransport.service.coordinator.host import CoordinatorHost
from wtransport.service.describe import MemberInfo, describe_members
from wtransport.service.limits import channel_limits
from wtransport.service.requests import Requests
from wtransport.service.sink.driver import SinkCalls, SinkDriver
from wtransport.service.source.driver import SourceDriver
from wtransport.session import messages as msg
from wtransport.session.identity import MemberId
from wtransport.session.membership import Membership, Profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.control.channel import Channel

_log = logging.getLogger("wtransport")
_EVENT_OPS = {
    "joined": Op.JOIN,
    "left": Op.LEAVE,
    "lost": Op.LOST,
    "excluded": Op.EXCLUDED,
    "admitted": Op.ADMITTED,
    "fenced": Op.FENCED,
    "stalled": Op.STALLED,
    "going on": Op.RESUMED,
    "behind": Op.BEHIND,
    "withdrawn": Op.WITHDRAW,
    "unavailable": Op.UNAVAILABLE,
    "publication": Op.PUBLICATION,
}


class MemberService:
    """Made, used and closed on the service's loop.

    Args:
        url: The coordinator's address.
        profile: Who this member is.
        config: Settings.
        backend: The user's choice, or ``auto``.
        takeover: Take the place of a live member of this name or rank.
        hosts: Run the coordinator in this process.
        post: Runs a function on the service's loop, from any thread.
        on_event: Hands an event to the user.
        on_failed: The member is no longer one, for good.
    """

    def __init__(
        self,
        url: str,
        profile: Profile,
        config: TransportConfig,
        *,
        backend: str,
        takeover: bool,
        hosts: bool,
        post: Callable[..., None],
        on_event: Callable[[msg.EventNotice], None],
        on_failed: Callable[[TransportError], None],
    ) -> None:
        self._url = url
        self._profile = profile
        self._config = config
        self._requested = backend
        self._takeover = takeover
        self._hosts = hosts
        self._post = post
        self._on_event = on_event
        self._on_failed = on_failed
        self._driver: EngineDriver | None = None
        self._host: CoordinatorHost | None = None
        self._listener: Listener | None = None
        self._client: CoordinatorClient | None = None
        self._requests = Requests(self._send, config.stall_timeout_s)
        self._urls: tuple[str, ...] = ()
        self.context: Context
        self.source: SourceDriver
        self.sink: SinkDriver | None = None

    async def start(self) -> None:
        """Open everything and be admitted.

        Raises:
            TransportError: If that failed; nothing is left open.
        """
        try:
            await self._start()
        except BaseException:
            await self.close("failed to start")
            raise

    async def _start(self) -> None:
        config = self._config
        secret = await Secret.of_config(config)
        driver = self._driver = EngineDriver(copy_threads=config.copy_threads, abort_grace_s=config.abort_grace_s)
        driver.on_liveness = self._on_liveness
        membership = Membership(self._profile, lambda: MemberId(secrets.token_hex(16)), takeover=self._takeover)
        registry = BackendRegistry()
        capabilities = registry.probe(driver, config)
        usable = [name for name, found in capabilities.items() if isinstance(found, Capabilities)]
        backends = {name: registry.create(name, driver, config) for name in usable}
        facts = await asyncio.to_thread(HostFacts.collect)
        listeners: dict[str, Any] = {}
        self.context = Context(
            config, secret, membership, driver, backends, listeners, capabilities, facts, self._requested, None, MemoryBudget(), self._send
        )
        self.context.recorder = self._open_recorder(membership)
        host = await self._host_address()
        if self._hosts:
            self._host = await self._open_coordinator(secret)
        for name, backend in backends.items():
            listeners[name] = await backend.listen(host)
        self.source = SourceDriver(self.context, self._on_event)
        if self._profile.role == "generator":
            self.sink = SinkDriver(self.context, SinkCalls(self.source.hold, self.source.release, self._post, self._on_event))
        self._listener = Listener(secret=secret)
        limits = channel_limits(config)
        codec = Codec(msg.MESSAGES, max_frame_nbytes=config.max_frame_nbytes)
        self._listener.serve_channels(self._opened, codec=codec, hello=lambda: self.context.hello(""), limits=limits)
        self._urls = await self._listener.listen(str(TcpAddress(host, 0)))
        calls = ClientCalls(
            self._join, self._welcomed, self._message, self._coordinator_lost, self._redraw, self._failed, lambda: membership.term
        )
        local = self._host.local_channel if self._host is not None else None
        self._client = CoordinatorClient(self._url, config, secret, driver.engine, facts, calls, local)
        await self._client.start()

    async def close(self, reason: str) -> None:
        """Leave, stop every work, give everything back."""
        self._requests.fail(ClosedError("the transport was closed before the coordinator answered"))
        if self.sink is not None:
            await self.sink.close()
        if hasattr(self, "source"):
            await self.source.close()
        if self._client is not None:
            await self._client.close(reason)
        if self._host is not None:
            await self._host.close()
        if self._listener is not None:
            await self._listener.close()
        if hasattr(self, "context"):
            context = self.context
            for task in list(context.tasks):
                task.cancel()
            await asyncio.gather(*context.tasks, return_exceptions=True)
            await asyncio.gather(*(listener.close() for listener in context.listeners.values()), return_exceptions=True)
            if context.recorder is not None:
                context.recorder.event(Op.LEAVE, detail=reason)
                context.recorder.close()
        if self._driver is not None:
            await self._driver.close()

    async def steer(self, verb: str, name: str, reason: str, other: str = "") -> str:
        """Ask the coordinator to exclude, admit or replace *name*; returns its complaint, or nothing."""
        reply = await self._requests.ask(verb, lambda number: msg.SteerRequest(number, verb, name, reason, other))
        assert isinstance(reply, msg.SteerReply)
        return reply.message

    async def members(self) -> tuple[MemberInfo, ...]:
        """The coordinator's report."""
        reply = await self._requests.ask("members", msg.MembersRequest)
        assert isinstance(reply, msg.MembersReply)
        return describe_members(reply.members)

    async def _host_address(self) -> str:
        """The interface to listen on: explicit, else loopback for a loopback coordinator, else the route to it."""
        if self._config.host is not None:
            return self._config.host
        address = parse(self._url)
        if not isinstance(address, TcpAddress) or await is_loopback(address.host):
            return "127.0.0.1" if not isinstance(address, TcpAddress) or ":" not in address.host else address.host
        return await route_host(address.host)

    async def _open_coordinator(self, secret: Secret) -> CoordinatorHost | None:
        """Host the coordinator, unless the address is served already, here or on another machine."""
        host = CoordinatorHost(self._config, secret, self.context.engine, self.context.facts)
        try:
            await host.listen(self._url)
        except BaseException as error:
            await host.close()
            elsewhere = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRNOTAVAIL
            if isinstance(error, BusyError) or elsewhere:
                return None
            raise
        return host

    def _open_recorder(self, membership: Membership) -> FlightRecorder | None:
        profile, config = membership.profile, self._config
        try:
            return FlightRecorder.open(
                state_dir(config),
                job=self._url,
                member=profile.name,
                role=profile.role,
                rank=profile.rank,
                incarnation=membership.member,
                num_records=config.recorder_records,
            )
        except (RegistrationError, ResourceError) as error:
            _log.warning("no flight record of %s is kept: %s", profile.name, error)
            self._on_event(msg.EventNotice("recorder off", profile.name, None, str(error)))
            return None

    def _on_liveness(self, handle: int, code: int, age_ns: int) -> None:
        if self._host is not None:
            self._host.on_liveness(handle, code, age_ns)
        if self._client is not None:
            self._client.on_liveness(handle, code, age_ns)

    def _send(self, message: object) -> bool:
        return self._client is not None and self._client.send(message)

    def _opened(self, channel: Channel) -> None:
        self.source.links.opened(channel)

    def _join(self) -> msg.Join:
        membership = self.context.membership
        binding, seq, shown, held = 0, 0, None, self.source.machine.holdings()
        if self.sink is not None:
            shows = self.sink.machine.shows
            binding, seq, shown, held = self.sink.machine.binding, shows.seq, shows.shown, self.sink.holdings()
        return membership.join(self._urls, held, binding, seq, shown)

    def _welcomed(self, message: msg.Welcome) -> bool:
        if not self.context.membership.on_term(message.term):
            return False
        self.context.membership.on_admitted()
        self.source.coordinator_lost = None
        self._post(self._after_welcome)
        return True

    def _after_welcome(self) -> None:
        self.source.machine.on_rejoined()
        self.source.pump.run()
        if self.sink is not None and self.sink.machine.binding:
            self._send(msg.Bound(self.sink.machine.binding))
            for holding in self.sink.holdings():
                self._send(msg.Installed(holding.identity, self.sink.machine.binding, holding))

    def _message(self, message: object) -> None:
        membership = self.context.membership
        match message:
            case msg.View():
                membership.on_view(message)
                self.source.on_members()
                if self.sink is not None:
                    self.sink.on_members()
            case msg.NewTerm():
                if membership.on_term(message.term):
                    join = self._join()
                    self._send(msg.Redeclare(join.declaration))
                    self._post(self._after_welcome)
            case msg.EventNotice():
                if self.context.recorder is not None and message.kind in _EVENT_OPS:
                    self.context.recorder.event(
                        _EVENT_OPS[message.kind], peer=message.member, version=message.version, detail=message.detail
                    )
                self._on_event(message)
            case msg.SteerReply() | msg.MembersReply():
                self._requests.answered(message)
            case msg.PublicationBegun() if not membership.on_publication(message):
                return
            case _:
                self.source.on_message(message)
                if self.sink is not None:
                    self.sink.on_message(message)

    def _coordinator_lost(self, error: TransportError) -> None:
        self.source.coordinator_lost = error
        self._requests.fail(error)
        self._on_event(msg.EventNotice("coordinator lost", "", None, str(error)))

    def _redraw(self, why: str) -> None:
        """P5: endpoints and grants of the old incarnation are dropped before a new one is drawn."""
        if self.context.membership.admitted:
            self._on_event(msg.EventNotice("expelled", self._profile.name, None, why))
        error = FencedError(f"this member was lost or excluded: {why}")
        self.source.links.drop_all(error)
        if self.sink is not None:
            self.sink.links.drop_all(error)
        self.context.membership.redraw()

    def _failed(self, error: TransportError) -> None:
        self._redraw(error.message)
        self.source.machine.on_expelled(error, self.context.now)
        self.source.pump.run()
        if self.sink is not None:
            self.sink.reading.fail(error)
        self._on_failed(error)
