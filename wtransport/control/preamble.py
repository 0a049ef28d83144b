"""Preamble: the first eight bytes of every connection, which say what it is for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wtransport.errors import ConfigError

if TYPE_CHECKING:
    import socket

MAGIC = b"WTP1"
PURPOSE_NBYTES = 4
PREAMBLE_NBYTES = len(MAGIC) + PURPOSE_NBYTES

CTRL = b"CTRL"
BEAT = b"BEAT"

# The one byte that answers the token of a raw connection.
TOKEN_TAKEN = b"+"
TOKEN_REFUSED = b"-"


def encode_preamble(purpose: bytes) -> bytes:
    """Return the eight bytes for *purpose*.

    Raises:
        ConfigError: If a purpose does not have four bytes.
    """
    if len(purpose) != PURPOSE_NBYTES:
        raise ConfigError(f"a purpose has {PURPOSE_NBYTES} bytes, not {purpose!r}")
    return MAGIC + purpose


async def receive_exactly(sock: socket.socket, nbytes: int) -> bytes:
    """Read *nbytes* and not one more from a non-blocking socket, so that it can be handed on.

    Raises:
        ConnectionResetError: If the peer closes before.
    """
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < nbytes:
        piece = await loop.sock_recv(sock, nbytes - len(data))
        if not piece:
            raise ConnectionResetError(f"closed by the peer after {len(data)} of {nbytes} bytes")
        data += piece
    return data
