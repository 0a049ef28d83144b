"""Listener: accepts connections of every purpose on any number of addresses."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from wtransport.control.address import Address, TcpAddress, address_of, parse, peer_name
from wtransport.control.binding import bind_abstract, bind_tcp, bind_unix, check_reach
from wtransport.control.channel import DEFAULT_LIMITS, Channel, ChannelLimits, open_channel
from wtransport.control.preamble import (
    CTRL,
    MAGIC,
    PREAMBLE_NBYTES,
    TOKEN_REFUSED,
    TOKEN_TAKEN,
    encode_preamble,
    receive_exactly,
)
from wtransport.control.tokens import TOKEN_NBYTES
from wtransport.control.unix_path import BoundPath
from wtransport.errors import AuthError, ClosedError, ConfigError, PeerLostError, ProtocolError, exhausted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.control.codec import Codec
    from wtransport.control.secret import Secret
    from wtransport.control.tokens import TokenTable

_BACKLOG = 1024
_ACCEPTS_AT_ONCE = 64
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESOURCES_PAUSE_S = 0.1

_log = logging.getLogger("wtransport")

T = TypeVar("T")
OnChannel: TypeAlias = Callable[[Channel], None]
OnSocket: TypeAlias = Callable[[socket.socket, T, str], None]
# Owns the socket from the call on.
_Serve: TypeAlias = Callable[[socket.socket, str], Awaitable[None]]


@dataclass(frozen=True)
class _Listening:
    sock: socket.socket
    address: Address
    path: BoundPath | None = None


class Listener:
    """One acceptor with several listening sockets; bind with `listen`, then advertise `addresses`.

    A connection begins with the magic and a purpose. ``CTRL`` leads to an authenticated `Channel`,
    given to the callback of `serve_channels`; any other purpose of `serve_raw` to a single-use
    token and then the bare socket. Whoever has not proven itself yet costs little: a few bytes, for
    a few seconds, `max_pending` at a time.

    Args:
        secret: What clients must prove; without one of scope ``job`` only this host can be served.
        handshake_timeout_s: Seconds from accepting to a finished handshake or a token taken.
        max_pending: Most connections before that point; further ones are closed and dial again.

    Attributes:
        refused: Connections turned away, by reason: ``full``, ``preamble``, ``purpose``, ``token``,
            ``auth``, ``protocol``, ``deadline``, ``lost``, ``failed``.
    """

    def __init__(
        self,
        *,
        secret: Secret | None,
        handshake_timeout_s: float = 10.0,
        max_pending: int = 256,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._secret = secret
        self._handshake_timeout_s = handshake_timeout_s
        self._max_pending = max_pending
        self._listening: list[_Listening] = []
        self._pending: set[asyncio.Task[None]] = set()
        self._unread: set[socket.socket] = set()
        self._purposes: dict[bytes, _Serve] = {}
        self._resumes: dict[socket.socket, asyncio.TimerHandle] = {}
        self._short = False  # it was said that descriptors or memory ran out
        self._closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, with the ports that the system chose."""
        return tuple(str(one.address) for one in self._listening)

    @property
    def num_pending(self) -> int:
        """Connections that have not proven themselves yet."""
        return len(self._pending)

    def serve_channels(
        self,
        on_channel: OnChannel,
        *,
        codec: Codec,
        hello: Callable[[], Mapping[str, object]],
        limits: ChannelLimits = DEFAULT_LIMITS,
        purpose: bytes = CTRL,
    ) -> None:
        """Serve channels: *on_channel* gets each before its first message is looked at.

        Args:
            on_channel: Called in the event loop; it owns the channel and attaches its callbacks.
            codec: The messages of the channels.
            hello: Called for each connection: plain data for the client, at most 4 KiB encoded.
            limits: Limits of each channel.
            purpose: Four bytes.

        Raises:
            ConfigError: If there is no secret to prove, or the purpose is served already.
        """
        secret = self._secret
        if secret is None:
            raise ConfigError("channels need a secret, the job's or this user's")

        async def shake(sock: socket.socket, peer: str) -> None:
            try:
                said = hello()
            except BaseException:
                sock.close()
                raise
            await open_channel(
                sock,
                role="server",
                secret=secret,
                hello=said,
                codec=codec,
                peer=peer,
                limits=limits,
                on_opened=on_channel,
            )

        self._serve(purpose, shake)

    def serve_raw(self, purpose: bytes, tokens: TokenTable[T], on_socket: OnSocket[T]) -> None:
        """Serve bare sockets: *on_socket* gets each that showed a token of *tokens*.

        Args:
            purpose: Four bytes.
            tokens: The owner's table; a token is used up here.
            on_socket: Called in the event loop with the connected non-blocking socket, which it
                owns and of which nothing after the token has been read, the token's value, and the
                name of the peer's address.

        Raises:
            ConfigError: If the purpose is served already.
        """

        async def redeem(sock: socket.socket, peer: str) -> None:
            loop = asyncio.get_running_loop()
            try:
                value = tokens.redeem(await receive_exactly(sock, TOKEN_NBYTES))
                if value is None:
                    await loop.sock_sendall(sock, TOKEN_REFUSED)
                    raise AuthError("no such token", peer=peer, phase="token")
                await loop.sock_sendall(sock, TOKEN_TAKEN)
                on_socket(sock, value, peer)
            except BaseException:
                sock.close()
                raise

        self._serve(purpose, redeem)

    async def listen(self, url: str, *, timeout_s: float = 10.0) -> tuple[str, ...]:
        """Bind and accept; return the bound addresses of *url* (a name may have several).

        Raises:
            ConfigError: If *url* is no address of this machine, or other hosts could reach it while
                the job has no secret.
            BusyError: If the address is taken by a live listener.
            ClosedError: If this listener is closed.
        """
        address = parse(url)
        self._check_open()
        if isinstance(address, TcpAddress):
            socks = await bind_tcp(address, self._secret, _BACKLOG, timeout_s)
            made = [_Listening(s, address_of(s.family, s.getsockname())) for s in socks]
        elif address.abstract:
            made = [_Listening(bind_abstract(address, _BACKLOG), address)]
        else:
            bound = await bind_unix(address, _BACKLOG, timeout_s)
            made = [_Listening(bound.sock, address, bound)]
        if self._closed:
            await self._release(made)
            self._check_open()
        for one in made:
            self._start(one)
        return tuple(str(one.address) for one in made)

    def adopt(self, sock: socket.socket) -> str:
        """Accept on a socket that the caller has bound, and now gives away; return its address.

        Raises:
            ConfigError: If it is no bound stream socket, or other hosts could reach it while the
                job has no secret. The socket then stays the caller's.
            ClosedError: If this listener is closed.
        """
        self._check_open()
        if sock.type != socket.SOCK_STREAM:
            raise ConfigError("a socket to listen on must be a stream socket")
        address = address_of(sock.family, sock.getsockname())
        check_reach(address, self._secret)
        if isinstance(address, TcpAddress) and address.port == 0:
            raise ConfigError("a socket to listen on must be bound")
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._start(_Listening(sock, address))
        return str(address)

    async def close(self) -> None:
        """Stop accepting, end what has not proven itself, remove the sockets' files. Idempotent.

        Channels and sockets that were handed over stay their owners'.
        """
        self._closed = True
        listening, self._listening = self._listening, []
        loop = asyncio.get_running_loop()
        for one in listening:
            loop.remove_reader(one.sock)
            if (resume := self._resumes.pop(one.sock, None)) is not None:
                resume.cancel()
        for task in list(self._pending):
            task.cancel()
        try:
            await asyncio.gather(*self._pending, return_exceptions=True)
        finally:
            await self._release(listening)

    async def _release(self, listening: list[_Listening]) -> None:
        try:
            for one in listening:
                if one.path is not None:
                    await asyncio.get_running_loop().run_in_executor(None, one.path.unlink)
        finally:
            for one in listening:
                one.sock.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this listener is closed")

    def _serve(self, purpose: bytes, serve: _Serve) -> None:
        encode_preamble(purpose)
        if purpose in self._purposes:
            raise ConfigError(f"the purpose {purpose!r} is served already")
        self._purposes[purpose] = serve

    def _start(self, one: _Listening) -> None:
        self._listening.append(one)
        asyncio.get_running_loop().add_reader(one.sock, self._accept, one.sock)

    def _accept(self, listening: socket.socket) -> None:
        # Not loop.sock_accept: a cancelled wait there can lose a socket that was accepted already.
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    # Linux hands errors of the new connection to accept: they are its own.
                    return
                if not self._short:
                    self._short = True
                    _log.warning("connections wait to be accepted: %s", exhausted(error, "accept a connection") or error)
                loop.remove_reader(listening)
                self._resumes[listening] = loop.call_later(_RESOURCES_PAUSE_S, self._resume, listening)
                return
            sock.setblocking(False)
            if len(self._pending) >= self._max_pending:
                self.refused["full"] += 1
                sock.close()
                continue
            task = loop.create_task(self._greet(sock))
            self._pending.add(task)
            self._unread.add(sock)
            task.add_done_callback(partial(self._greeted, sock))

    def _resume(self, listening: socket.socket) -> None:
        self._resumes.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _greeted(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        if sock in self._unread:
            # A task that is cancelled before its first step never runs, so cannot clean up either.
            self._unread.discard(sock)
            sock.close()

    async def _greet(self, sock: socket.socket) -> None:
        self._unread.discard(sock)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                serve, peer = await self._identify(sock)
                await serve(sock, peer)
        except TimeoutError:
            self.refused["deadline"] += 1
        except AuthError as error:
            self.refused["token" if error.phase == "token" else "auth"] += 1
        except ProtocolError as error:
            early = error.phase in ("preamble", "purpose")
            self.refused[str(error.phase) if early else "protocol"] += 1
        except (OSError, PeerLostError):
            self.refused["lost"] += 1
        except Exception as error:
            self.refused["failed"] += 1
            loop.call_exception_handler({"message": "a connection could not be handed over", "exception": error})

    async def _identify(self, sock: socket.socket) -> tuple[_Serve, str]:
        """Read the preamble; close *sock* unless it is known what serves it."""
        try:
            peer = peer_name(sock)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            preamble = await receive_exactly(sock, PREAMBLE_NBYTES)
            magic, purpose = preamble[: len(MAGIC)], preamble[len(MAGIC) :]
            if magic != MAGIC:
                raise ProtocolError("no preamble", peer=peer, phase="preamble")
            if purpose not in self._purposes:
                raise ProtocolError(f"no purpose {purpose!r}", peer=peer, phase="purpose")
            return self._purposes[purpose], peer
        except BaseException:
            sock.close()
            raise
