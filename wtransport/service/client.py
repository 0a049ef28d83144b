"""A member's connection to the coordinator: joins, beats, and comes back after either side was lost (P5, P6)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wtransport import _native
from wtransport.control.channel import Channel
from wtransport.control.codec import Codec
from wtransport.control.dial import connect, dial_raw
from wtransport.control.preamble import BEAT
from wtransport.errors import (
    AuthError,
    ConnectError,
    FencedError,
    InternalError,
    PeerLostError,
    ProtocolError,
    TransportError,
    error_classes,
)
from wtransport.service.limits import channel_limits
from wtransport.session import messages as msg
from wtransport.session.identity import Term

if TYPE_CHECKING:
    from wtransport.backends.hostfacts import HostFacts
    from wtransport.config import TransportConfig
    from wtransport.control.secret import Secret
    from wtransport.service.localchannel import ControlChannel

_RETRY_S = 0.2


@dataclass(frozen=True)
class ClientCalls:
    """What the client asks of, and tells, the member it belongs to.

    Attributes:
        join: Makes the Join for the present incarnation.
        welcomed: Admitted under this welcome; False refuses its term.
        message: Any later message.
        lost: The coordinator is gone, for now.
        redraw: Not a member any more: drop every endpoint and grant and take a new incarnation.
        failed: It is over: no admission is possible.
    """

    join: Callable[[], msg.Join]
    welcomed: Callable[[msg.Welcome], bool]
    message: Callable[[object], None]
    lost: Callable[[TransportError], None]
    redraw: Callable[[str], None]
    failed: Callable[[TransportError], None]
    term: Callable[[], Term]


class CoordinatorClient:
    """Keeps one member connected to the coordinator at *url* until closed.

    Args:
        url: The coordinator's address.
        config: Deadlines and the heartbeat's settings.
        secret: What to prove.
        engine: Native engine whose queue the heartbeat's events go to.
        facts: This process.
        calls: The member.
        local: Makes a channel to a coordinator on this very loop; None dials *url*.
    """

    def __init__(
        self,
        url: str,
        config: TransportConfig,
        secret: Secret,
        engine: _native.Engine,
        facts: HostFacts,
        calls: ClientCalls,
        local: Callable[[], ControlChannel] | None = None,
    ) -> None:
        self._url = url
        self._config = config
        self._secret = secret
        self._facts = facts
        self._calls = calls
        self._local = local
        self._channel: ControlChannel | None = None
        self._admitted = asyncio.Event()
        self._ended = asyncio.Event()
        self._beat_handle = secrets.randbits(62)
        self._heart = _native.Heart(engine, config.heartbeat_interval_s, config.silent_after_s)
        self._codec = Codec(msg.MESSAGES, max_frame_nbytes=config.max_frame_nbytes)
        self._limits = channel_limits(config)
        self._loop = asyncio.get_running_loop()
        self._toucher = self._loop.call_soon(self._touch)
        self._refusal: msg.Refused | None = None
        self._task: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether this member is admitted right now."""
        return self._admitted.is_set()

    async def start(self) -> None:
        """Connect and be admitted within ``connect_timeout_s``.

        Raises:
            ConnectError: If nobody answered; the message lists what was tried.
            TransportError: If this member was refused.
        """
        loop = self._loop
        deadline = loop.time() + self._config.connect_timeout_s
        await self._connect_once(deadline - loop.time(), deadline)
        self._task = loop.create_task(self._keep())

    def send(self, message: object) -> bool:
        """Queue *message* for the coordinator; False while there is none (it learns what matters from the next Join)."""
        channel = self._channel
        if channel is None or channel.closed or not self._admitted.is_set():
            return False
        try:
            channel.send_nowait(message)
        except PeerLostError:
            return False
        return True

    def on_liveness(self, handle: int, code: int, age_ns: int) -> None:
        """The native heartbeat noticed something about the coordinator."""
        if handle != self._beat_handle or self._channel is None:
            return
        if code == _native.LIVENESS_SILENT:
            self._channel.abort(PeerLostError(f"the coordinator sent no heartbeat for {age_ns / 1e9:.1f} s", phase="heartbeat"))
        elif code == _native.LIVENESS_EXITED:
            self._channel.abort(PeerLostError("the coordinator's process ended", phase="heartbeat"))

    async def close(self, reason: str) -> None:
        """Leave in order."""
        self.send(msg.Leave(reason))
        self._toucher.cancel()
        for task in (self._task, self._beating):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(1.0)
        self._heart.close()

    async def _keep(self) -> None:
        """Reconnect for as long as the transport lives: members keep their version without a coordinator."""
        while True:
            await self._ended.wait()
            self._heart.remove(self._beat_handle)
            await asyncio.sleep(_RETRY_S)
            try:
                timeout_s = self._config.connect_timeout_s
                await self._connect_once(timeout_s, self._loop.time() + timeout_s)
            except FencedError as error:
                self._calls.failed(error)
                return
            except (ConnectError, PeerLostError, ProtocolError, TimeoutError) as error:
                # Another service may have the port for a while; a secret that is refused stays refused.
                if isinstance(error, AuthError):
                    self._calls.failed(error)
                    return
                self._ended.set()
            except Exception as caught:
                broken = caught if isinstance(caught, TransportError) else InternalError(f"rejoining failed: {caught!r}")
                broken.__cause__ = broken.__cause__ or (caught if caught is not broken else None)
                self._calls.failed(broken)
                return

    async def _connect_once(self, timeout_s: float, deadline: float) -> None:
        while True:
            self._refusal = None
            self._ended.clear()
            self._admitted.clear()
            channel = self._channel = await self._dial(deadline)
            channel.attach(self._message, self._closed)
            channel.send_nowait(self._calls.join())
            waits = [self._loop.create_task(event.wait()) for event in (self._admitted, self._ended)]
            try:
                await asyncio.wait(waits, timeout=max(0.1, deadline - self._loop.time()), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._admitted.is_set():
                return
            refusal: msg.Refused | None = self._refusal
            if refusal is not None and not refusal.redraw:
                raise error_classes()[refusal.code](refusal.message, hint=refusal.hint or None, phase="join")
            if self._loop.time() >= deadline:
                why = refusal.message if refusal is not None else "no answer to Join"
                channel.abort(ConnectError(why))
                raise ConnectError(f"not admitted by {self._url} within {timeout_s:g} s: {why}", phase="join")
            if refusal is not None:
                self._calls.redraw(refusal.message)
            await asyncio.sleep(_RETRY_S)

    async def _dial(self, deadline: float) -> ControlChannel:
        if self._local is not None:
            return self._local()
        left_s = max(0.1, deadline - self._loop.time())
        hello = {"role": "member", "facts": self._facts.to_wire()}
        return await connect(self._url, secret=self._secret, hello=hello, codec=self._codec, deadline_s=left_s, limits=self._limits)

    def _message(self, message: Any) -> None:
        if isinstance(message, msg.Refused):
            self._refusal = message
            if self._admitted.is_set():
                self._calls.redraw(message.message) if message.redraw else self._calls.failed(
                    error_classes().get(message.code, FencedError)(message.message, hint=message.hint or None)
                )
            return
        if isinstance(message, msg.Welcome):
            self._start_beat(message.beat_token)
            if self._calls.welcomed(message):
                self._admitted.set()
            elif self._channel is not None:
                self._channel.send_nowait(msg.TermRefused(self._calls.term()))
            return
        if isinstance(message, msg.NewTerm):
            self._admitted.set()
        self._calls.message(message)

    def _start_beat(self, token: bytes) -> None:
        if self._local is None:
            if self._beating is not None:
                self._beating.cancel()  # its token was that of the connection before
            self._beating = self._loop.create_task(self._beat(token, self._channel))

    def _closed(self, error: TransportError | None) -> None:
        was = self._admitted.is_set()
        self._admitted.clear()
        self._ended.set()
        if was:
            self._calls.lost(error or PeerLostError("the coordinator closed the channel"))

    async def _beat(self, token: bytes, channel: ControlChannel | None) -> None:
        try:
            sock = await dial_raw(self._url, BEAT, token, self._config.connect_timeout_s)
        except TransportError as error:
            if channel is not None:
                channel.abort(error)  # without a heartbeat a stopped coordinator would not be noticed
            return
        sock.setblocking(True)
        self._heart.add(self._beat_handle, sock.detach())
        pidfd = self._facts.open_process(channel.peer_hello.get("facts")) if isinstance(channel, Channel) else None
        if pidfd is not None:
            self._heart.watch_pid(self._beat_handle, pidfd)

    def _touch(self) -> None:
        self._heart.touch()
        self._toucher = self._loop.call_later(self._config.heartbeat_interval_s, self._touch)
