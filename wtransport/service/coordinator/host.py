"""The coordinator with its sockets: one listener, a channel and a heartbeat per member."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from wtransport import _native
from wtransport.backends.hostfacts import HostFacts
from wtransport.control.channel import Channel
from wtransport.control.codec import Codec
from wtransport.control.listener import Listener
from wtransport.control.preamble import BEAT
from wtransport.control.tokens import TokenTable
from wtransport.errors import PeerLostError, ProtocolError, TransportError
from wtransport.service.limits import channel_limits
from wtransport.service.localchannel import ControlChannel, LocalChannel
from wtransport.service.pump import Pump
from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.coordinator.machine import Coordinator
from wtransport.session.coordinator.report import Pulse, report
from wtransport.session.coordinator.steering import Policies
from wtransport.session.identity import MemberId

if TYPE_CHECKING:
    import socket

    from wtransport.config import TransportConfig
    from wtransport.control.secret import Secret

_JOIN_TIMEOUT_S = 10.0
# 2026-01-01 UTC. A term of milliseconds since then is above those of earlier starts without anything being kept: a member that comes back
# to a restarted coordinator need not tell it a higher one, which would end the puts it has admitted meanwhile.
_TERM_EPOCH_MS = 1_767_225_600_000


class CoordinatorHost:
    """Runs the coordinator's machine on the running loop.

    Args:
        config: Deadlines, caps and the heartbeat's settings.
        secret: What members must prove.
        engine: Native engine whose queue the heartbeat's events go to; its driver hands them to ``on_liveness``.
        facts: This process: members on its host are watched as processes, too.
    """

    def __init__(self, config: TransportConfig, secret: Secret, engine: _native.Engine, facts: HostFacts) -> None:
        self._config = config
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self.machine = Coordinator(
            secrets.token_hex(16),
            rebuild_s=config.rebuild_s,
            answer_timeout_s=config.stall_timeout_s,
            first_term=max(1, time.time_ns() // 1_000_000 - _TERM_EPOCH_MS),
            policies=Policies(config.max_restarts, config.min_healthy),
        )
        self._pump = Pump(self.machine, {act.Send: self._send, act.Expel: self._expel, act.Emit: lambda _: None})
        self._listener = Listener(secret=secret)
        self._tokens: TokenTable[MemberId] = TokenTable()
        self._channels: dict[MemberId, ControlChannel] = {}
        self._handles: dict[MemberId, int] = {}
        self._by_handle: dict[int, MemberId] = {}
        self._heart = _native.Heart(engine, config.heartbeat_interval_s, config.silent_after_s)
        self._toucher = self._loop.call_soon(self._touch)
        self._joined: dict[MemberId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        limits = channel_limits(config)
        codec = Codec(msg.MESSAGES, max_frame_nbytes=config.max_frame_nbytes)
        hello = {"role": "coordinator", "facts": facts.to_wire()}
        self._listener.serve_channels(self._opened, codec=codec, hello=lambda: hello, limits=limits)
        self._listener.serve_raw(BEAT, self._tokens, self._beat)

    async def listen(self, url: str) -> tuple[str, ...]:
        """Bind *url*; returns the bound addresses."""
        return await self._listener.listen(url, timeout_s=self._config.connect_timeout_s)

    def on_liveness(self, handle: int, code: int, age_ns: int) -> None:
        """The native heartbeat noticed something about a member."""
        member = self._by_handle.get(handle)
        record = self.machine.roster.members.get(member) if member is not None else None
        if member is None or record is None:
            return
        if code == _native.LIVENESS_SILENT:
            self._lost(member, f"no heartbeat for {age_ns / 1e9:.1f} s: the process is stopped, or the network is down")
        elif code in (_native.LIVENESS_STALLED, _native.LIVENESS_UNSTALLED):
            self.machine.on_stalled(member, code == _native.LIVENESS_STALLED, age_ns / 1e9)
            self._pump.run()
        elif code == _native.LIVENESS_EOF:
            self._lost(member, "its heartbeat connection ended: the process is gone")
        elif code == _native.LIVENESS_EXITED:
            self._lost(member, "its process ended")

    async def close(self) -> None:
        """Close every channel and the listener."""
        self._pump.close()
        self._toucher.cancel()
        for task in list(self._tasks):
            task.cancel()
        await self._listener.close()
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close(0.5) for channel in channels), return_exceptions=True)
        self._heart.close()

    def local_channel(self) -> ControlChannel:
        """The member's end of a channel from this very loop."""
        mine, theirs = LocalChannel.pair()
        self._opened(mine)
        return theirs

    def _opened(self, channel: ControlChannel) -> None:
        deadline = self._loop.call_later(_JOIN_TIMEOUT_S, channel.abort, PeerLostError("no Join within the deadline"))

        def first(message: object) -> None:
            deadline.cancel()
            if isinstance(message, msg.MembersRequest | msg.SteerRequest):
                self._operate(channel, message)
            elif isinstance(message, msg.Join):
                self._join(channel, message)
            else:
                raise ProtocolError(f"the first message must be Join, not {type(message).__name__}")

        channel.attach(first, lambda error: deadline.cancel())

    def _join(self, channel: ControlChannel, join: msg.Join) -> None:
        member = join.member
        old = self._channels.get(member)
        if old is not None:
            # The same incarnation twice: the machine refuses it; the one that is there stays.
            raise ProtocolError(f"{join.name} is here already under this incarnation")
        self._channels[member] = channel
        if isinstance(channel, LocalChannel):
            self.machine.host = member
        else:
            self._loop.call_later(self._config.connect_timeout_s, self._expect_beat, member, channel)
        channel.attach(partial(self._message, member), partial(self._closed, member, channel))
        token = self._tokens.issue(member, self._config.connect_timeout_s)
        self._joined[member] = self._pump.now
        self.machine.on_join(join, token, self._pump.now)
        self._pump.run()

    def _look_for_life(self) -> None:
        """Ask the heartbeats about members whose place somebody claims."""
        for member, since in self.machine.claims.contested().items():
            seen_s = self._seen_s(member)
            # Half an interval later than the claim: a beat that was on its way already says nothing of a process that has just died.
            if seen_s is not None and self._pump.now - seen_s >= since + self._config.heartbeat_interval_s / 2:
                self.machine.on_alive(member, self._whereabouts(member, seen_s))
                self._pump.run()

    def _seen_s(self, member: MemberId) -> float | None:
        """Age of the member's last heartbeat; None if none has come yet."""
        if member == self.machine.host:
            return 0.0
        try:
            return self._heart.stats(self._handles[member])[0] / 1e9
        except KeyError:
            return None

    def _whereabouts(self, member: MemberId, seen_s: float) -> str:
        channel, place = self._channels.get(member), self._facts.whereabouts
        if isinstance(channel, Channel):
            try:
                place = HostFacts.from_wire(channel.peer_hello.get("facts")).whereabouts
            except ProtocolError:
                place = "somewhere"  # a member of another make, which does not say
        age_s = self._pump.now - self._joined.get(member, self._pump.now)
        return f"{place}, joined {age_s:.1f} s ago, last heartbeat {seen_s:.1f} s ago"

    def _operate(self, channel: ControlChannel, message: object) -> None:
        """A channel that is no member's: an operator's, authenticated like any other. Its end is nobody's loss."""
        operator = MemberId(f"operator:{secrets.token_hex(16)}")
        self._channels[operator] = channel

        def serve(request: object) -> None:
            if not isinstance(request, msg.MembersRequest | msg.SteerRequest):
                raise ProtocolError(f"{type(request).__name__} is not an operator's to send")
            self._message(operator, request)

        channel.attach(serve, lambda error: self._closed(operator, channel, error))
        serve(message)

    def _pulses(self) -> dict[MemberId, Pulse]:
        found = {}
        for member, handle in self._handles.items():
            with contextlib.suppress(KeyError):  # its socket has just ended
                seen_ns, progress_ns = self._heart.stats(handle)
                found[member] = Pulse(seen_ns / 1e9, progress_ns / 1e9, progress_ns / 1e9 > self._config.silent_after_s)
        return found

    def _message(self, member: MemberId, message: object) -> None:
        if isinstance(message, msg.MembersRequest):
            self._send(act.Send(member, msg.MembersReply(message.request, report(self.machine, self._pulses()))))
            return
        dispatch.member_to_coordinator(self.machine, member, message, self._pump.now)
        self._pump.run()

    def _closed(self, member: MemberId, channel: ControlChannel, error: TransportError | None) -> None:
        if self._channels.get(member) is channel:
            del self._channels[member]
            self._joined.pop(member, None)
            self._lost(member, f"its control channel ended: {error.message if error else 'closed'}")

    def _lost(self, member: MemberId, cause: str) -> None:
        self.machine.on_lost(member, "lost", cause, self._pump.now)
        self._pump.run()

    def _beat(self, sock: socket.socket, member: MemberId, peer: str) -> None:
        channel = self._channels.get(member)
        if not isinstance(channel, Channel):
            sock.close()
            return
        handle = secrets.randbits(62)
        self._handles[member] = handle
        self._by_handle[handle] = member
        sock.setblocking(True)
        self._heart.add(handle, sock.detach())
        pidfd = self._facts.open_process(channel.peer_hello.get("facts"))
        if pidfd is not None:
            self._heart.watch_pid(handle, pidfd)

    def _expect_beat(self, member: MemberId, channel: ControlChannel) -> None:
        """A member whose heart cannot be heard could stop unnoticed: it is to come again."""
        if self._channels.get(member) is channel and member not in self._handles:
            channel.abort(PeerLostError("it opened no heartbeat connection", phase="heartbeat"))

    def _touch(self) -> None:
        self._toucher = self._loop.call_later(self._config.heartbeat_interval_s, self._touch)
        self._heart.touch()
        self._look_for_life()

    def _send(self, action: act.Send) -> None:
        channel = self._channels.get(action.to)
        if channel is not None and not channel.closed:
            try:
                channel.send_nowait(action.message)
            except PeerLostError:
                return  # its end is reported by the channel itself

    def _expel(self, action: act.Expel) -> None:
        self._joined.pop(action.member, None)
        handle = self._handles.pop(action.member, None)
        if handle is not None:
            self._by_handle.pop(handle, None)
            self._heart.remove(handle)
        channel = self._channels.pop(action.member, None)
        if channel is not None:
            task = self._loop.create_task(channel.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
