"""Dialling a listener that may not be there yet, and saying what was tried if it never is."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from wtransport.control.address import (
    Target,
    TcpAddress,
    is_loopback_ip,
    is_wildcard,
    parse,
    resolve,
)
from wtransport.control.channel import DEFAULT_LIMITS, Channel, ChannelLimits, open_channel
from wtransport.control.preamble import (
    CTRL,
    TOKEN_REFUSED,
    TOKEN_TAKEN,
    encode_preamble,
    receive_exactly,
)
from wtransport.control.tokens import TOKEN_NBYTES
from wtransport.errors import (
    AuthError,
    ConfigError,
    ConnectError,
    PeerLostError,
    ProtocolError,
    TransportError,
    exhausted,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wtransport.control.codec import Codec
    from wtransport.control.secret import Secret

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
# Of several addresses, one that swallows packets must not use up the time of the rest.
_FIRST_CONNECT_S = 2.0
# Nothing that waiting for the other side could mend.
_FINAL_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT, errno.EPROTOTYPE, errno.ENOTSOCK, errno.EINVAL})

T = TypeVar("T")


async def connect(
    url: str,
    *,
    secret: Secret,
    hello: Mapping[str, object],
    codec: Codec,
    deadline_s: float,
    purpose: bytes = CTRL,
    on_message: Callable[[Any], None] | None = None,
    on_closed: Callable[[TransportError | None], None] | None = None,
    limits: ChannelLimits = DEFAULT_LIMITS,
) -> Channel:
    """Dial *url* until a channel is open; the listener may start later than this call.

    Every address of a name is tried, again and again with growing, jittered pauses. A refused proof
    is final. Messages may reach *on_message* before this returns.

    Args:
        url: A listener's address.
        secret: The secret to prove; one of scope ``user`` dials this host only.
        hello: Plain data for the listener's owner, at most 4 KiB encoded.
        codec: The messages of the channel.
        deadline_s: Seconds for everything, handshake included.
        purpose: Four bytes that the listener knows.
        on_message: See `Channel.attach`.
        on_closed: See `Channel.attach`.
        limits: The channel's limits.

    Raises:
        ConfigError: If *url* is no address that can be dialled.
        AuthError: If one side does not know the other's secret.
        ProtocolError: If what answers is not of this library, or of another version.
        ConnectError: If the deadline passes; it lists what was tried and how each ended.
    """

    async def shake(sock: socket.socket, target: Target) -> Channel:
        await _greet(sock, encode_preamble(purpose))
        return await open_channel(
            sock,
            role="client",
            secret=secret,
            hello=hello,
            codec=codec,
            peer=str(target),
            limits=limits,
            on_message=on_message,
            on_closed=on_closed,
        )

    encode_preamble(purpose)
    return await _Dialler(url, deadline_s, local_only=secret.scope == "user").run(shake)


async def dial_raw(url: str, purpose: bytes, token: bytes, deadline_s: float) -> socket.socket:
    """Dial *url* and show *token*; return the connected non-blocking socket once it was taken.

    Nothing after the answer has been read from the socket; the caller owns it.

    Args:
        url: A listener's address.
        purpose: Four bytes that the listener knows.
        token: What the listener's owner issued for this; it opens once.
        deadline_s: Seconds for everything.

    Raises:
        ConfigError: If *url* is no address that can be dialled, or the token is no token.
        AuthError: If the token was refused.
        ProtocolError: If what answers is not of this library.
        ConnectError: If the deadline passes.
    """

    async def present(sock: socket.socket, target: Target) -> socket.socket:
        await _greet(sock, encode_preamble(purpose) + token)
        try:
            answer = await receive_exactly(sock, 1)
        except BaseException:
            sock.close()
            raise
        if answer == TOKEN_TAKEN:
            return sock
        sock.close()
        if answer == TOKEN_REFUSED:
            raise AuthError("the token was refused: unknown, used or too old", peer=str(target))
        raise ProtocolError(f"{answer!r} is no answer to a token", peer=str(target))

    encode_preamble(purpose)
    if len(token) != TOKEN_NBYTES:
        raise ConfigError(f"a token has {TOKEN_NBYTES} bytes, not {len(token)}")
    return await _Dialler(url, deadline_s, local_only=False).run(present)


async def _greet(sock: socket.socket, data: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(sock, data)
    except BaseException:
        sock.close()
        raise


@dataclass
class _Tried:
    """One address (or the resolver): how often it was tried and how that ended last."""

    error: OSError | TransportError
    count: int = 0


class _Dialler:
    """One dial: rounds over all addresses until one answers or the deadline passes."""

    def __init__(self, url: str, deadline_s: float, *, local_only: bool) -> None:
        address = parse(url)
        if isinstance(address, TcpAddress) and (address.port == 0 or is_wildcard(address)):
            raise ConfigError(
                f"{address} is an address to listen on, not to dial",
                hint="dial the address that the listener advertises",
            )
        self._address = address
        self._deadline_s = deadline_s
        self._ends_s = asyncio.get_running_loop().time() + deadline_s
        self._local_only = local_only
        self._tried: dict[str, _Tried] = {}

    async def run(self, attempt: Callable[[socket.socket, Target], Awaitable[T]]) -> T:
        """Dial; *attempt* gets a connected socket, which it owns, and runs under a timeout."""
        connect_s, pause_s = _FIRST_CONNECT_S, _FIRST_PAUSE_S
        while self._left_s() > 0:
            targets = await self._resolve()
            fatal: list[TransportError] = []
            hopeless = 0
            for number, target in enumerate(targets):
                share_s = self._left_s() / (len(targets) - number)
                taken = False
                try:
                    async with asyncio.timeout(share_s):
                        one_of_many = len(targets) > 1
                        sock = await _connected(target, connect_s if one_of_many else share_s)
                        taken = True
                        return await attempt(sock, target)
                except (OSError, TransportError) as caught:
                    if (none_left := exhausted(caught, f"connect to {self._address}")) is not None:
                        raise none_left from caught
                    error = _explained(caught, taken)
                    self._note(str(target), error)
                    if isinstance(error, TransportError) and not isinstance(error, PeerLostError):
                        fatal.append(error.with_fields(peer=str(target)))
                    hopeless += getattr(error, "errno", None) in _FINAL_ERRNOS
            if fatal:
                raise fatal[0]
            if targets and hopeless == len(targets):
                break
            # Jitter: what waits for one listener must not all come back in the same instant.
            await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), max(self._left_s(), 0)))
            connect_s, pause_s = connect_s * 2, min(pause_s * 2, _LONGEST_PAUSE_S)
        raise self._failure()

    def _left_s(self) -> float:
        return self._ends_s - asyncio.get_running_loop().time()

    async def _resolve(self) -> list[Target]:
        try:
            async with asyncio.timeout(self._left_s()):
                targets = await resolve(self._address)
        except (TimeoutError, ConnectError) as error:
            self._note("name resolution", error)
            return []
        if not self._local_only or not isinstance(self._address, TcpAddress):
            return targets
        local = [target for target in targets if is_loopback_ip(target.sockaddr[0])]
        if not local:
            raise ConfigError(
                f"{self._address} is not on this host, and the per-user secret is good only there",
                hint="give every member of the job the same secret",
            )
        return local

    def _note(self, where: str, error: OSError | TransportError) -> None:
        tried = self._tried.setdefault(where, _Tried(error))
        tried.count += 1
        # The attempt that the deadline cut off says less than the one before it.
        if not isinstance(error, TimeoutError) or error.errno is not None:
            tried.error = error

    def _failure(self) -> ConnectError:
        lines = [f"{where} ({tried.count} times, last: {_why(tried.error)})" for where, tried in self._tried.items()]
        within = f" within {self._deadline_s:.3g} s" if self._left_s() <= 0 else ""
        error = ConnectError(
            f"no connection to {self._address}{within}; tried {', '.join(lines) or 'nothing'}",
            phase="connect",
        )
        error.__cause__ = next((tried.error for tried in self._tried.values()), None)
        return error


def _explained(error: OSError | TransportError, taken: bool) -> OSError | TransportError:
    """How an attempt ended, if it was not a listener of this library that took the connection."""
    if taken and isinstance(error, TimeoutError):
        return PeerLostError("it took the connection and did not answer: another service, or a stopped process?")
    if not isinstance(error, ProtocolError):
        return error
    hint = "is that another service's port, or a member of another version?"
    explained = ProtocolError(f"what answers there is no listener of a job: {error.message}", hint=hint)
    explained.__cause__ = error
    return explained


async def _connected(target: Target, timeout_s: float) -> socket.socket:
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, target.sockaddr)
        if target.family != socket.AF_UNIX:
            # A port of the ephemeral range that nobody listens on may connect to itself.
            if sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _why(error: OSError | TransportError) -> str:
    if isinstance(error, TransportError):
        return error.message
    if error.errno is None:
        return "timed out" if isinstance(error, TimeoutError) else str(error)
    return f"{errno.errorcode.get(error.errno, error.errno)} {os.strerror(error.errno)}"
