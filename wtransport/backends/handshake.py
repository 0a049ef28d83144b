"""How a data connection proves where it belongs, before a byte of weights: preamble and verdict."""

from __future__ import annotations

import asyncio
import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from wtransport.errors import (
    AuthError,
    ConnectError,
    ProtocolError,
    StaleEpochError,
    TransportError,
    exhausted,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

_LAYOUT = struct.Struct("<8s32sQHH")
PREAMBLE_NBYTES = _LAYOUT.size


@dataclass(frozen=True)
class Preamble:
    """First bytes on each socket of an endpoint.

    Attributes:
        magic: 8 bytes that name the backend and the protocol's version.
        token: The single-use token.
        epoch: The endpoint's epoch.
        stream: Index of this socket.
        streams: Number of sockets of the endpoint.
    """

    magic: bytes
    token: bytes
    epoch: int
    stream: int
    streams: int

    def encode(self) -> bytes:
        """Little-endian, 52 bytes."""
        return _LAYOUT.pack(self.magic, self.token, self.epoch, self.stream, self.streams)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raise ``ProtocolError`` unless *data* has the size of a preamble."""
        if len(data) != PREAMBLE_NBYTES:
            raise ProtocolError(f"a preamble is {PREAMBLE_NBYTES} bytes, not {len(data)}")
        return cls(*_LAYOUT.unpack(data))


class Verdict(enum.IntEnum):
    """The listener's one-byte answer on each socket."""

    ADMITTED = 1
    MALFORMED = 2
    TOKEN = 3
    EPOCH = 4
    USER = 5
    LATE = 6

    @classmethod
    def of(cls, error: TransportError) -> Verdict:
        """The verdict that tells the peer about *error*."""
        if isinstance(error, StaleEpochError):
            return cls.EPOCH
        return cls.TOKEN if isinstance(error, AuthError) else cls.MALFORMED


_REFUSALS: dict[Verdict, Callable[[str], TransportError]] = {
    Verdict.MALFORMED: lambda addr: ProtocolError(
        f"{addr} could not read the preamble",
        hint="both ends must run the same version of wtransport, and agree on streams",
    ),
    Verdict.TOKEN: lambda addr: AuthError(f"{addr} refused the token"),
    Verdict.EPOCH: lambda addr: StaleEpochError(f"{addr} expects another epoch"),
    Verdict.USER: lambda addr: AuthError(f"{addr} belongs to another user"),
    Verdict.LATE: lambda addr: ConnectError(f"{addr} gave up before every stream had arrived"),
}


async def receive_exactly(sock: socket.socket, nbytes: int) -> bytes:
    """Receive *nbytes*, or fewer if the other side ends; never more."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < nbytes:
        piece = await loop.sock_recv(sock, nbytes - len(data))
        if not piece:
            break
        data += piece
    return data


async def dial(
    addr: str,
    opening: Callable[[], Awaitable[socket.socket]],
    *,
    magic: bytes,
    token: bytes,
    epoch: int,
    streams: int,
    timeout_s: float,
) -> list[socket.socket]:
    """Open *streams* sockets, present the token on each, wait for the verdicts.

    Args:
        addr: For errors.
        opening: Makes one connected, non-blocking socket.
        magic: Of the backend.
        token: The single-use token.
        epoch: The endpoint's epoch.
        streams: Number of sockets.
        timeout_s: For everything together.

    Raises:
        ConnectError: If nobody listens there, or no verdict came in time.
        TransportError: As the verdict says.
    """
    socks: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    step = "opening sockets"
    try:
        async with asyncio.timeout(timeout_s):
            for index in range(streams):
                socks.append(await opening())
                preamble = Preamble(magic, token, epoch, index, streams)
                await loop.sock_sendall(socks[-1], preamble.encode())
            step = "waiting for the verdict"
            for sock in socks:
                _check(addr, await receive_exactly(sock, 1))
    except BaseException as error:
        for sock in socks:
            sock.close()
        if isinstance(error, TimeoutError):
            message = f"no connection to {addr} within {timeout_s:g} s ({step})"
            raise ConnectError(message) from error
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise exhausted(error, f"connect to {addr}") or ConnectError(f"cannot connect to {addr}: {error} ({step})") from error
        raise
    return socks


def _check(addr: str, answer: bytes) -> None:
    if not answer:
        raise ConnectError(f"{addr} hung up instead of answering")
    try:
        verdict = Verdict(answer[0])
    except ValueError:
        raise ProtocolError(f"{addr} answered with an unknown verdict {answer[0]}") from None
    if verdict is not Verdict.ADMITTED:
        raise _REFUSALS[verdict](addr)
