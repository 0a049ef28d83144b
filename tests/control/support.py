"""What the tests of the control plane share: messages of their own, listeners, peers that speak bytes."""

from __future__ import annotations

import asyncio
import enum
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wtransport.control.channel import DEFAULT_LIMITS, Channel, ChannelLimits
from wtransport.control.codec import Codec
from wtransport.control.frames import FrameDecoder, encode_frame
from wtransport.control.listener import Listener
from wtransport.control.preamble import CTRL, encode_preamble
from wtransport.control.schema import Cap, Range
from wtransport.control.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.control.auth import Handshake
    from wtransport.errors import TransportError

SECRET = Secret.of_job("the secret of these tests")
OTHER_SECRET = Secret.of_job("another secret")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Point:
    x: int
    label: str | None


@dataclass(frozen=True)
class Ping:
    n: int
    body: bytes = b""


@dataclass(frozen=True)
class Everything:
    number: int
    small: Annotated[int, Range(-3, 7)]
    flag: bool
    ratio: float
    text: str
    short: Annotated[str, Cap(5)]
    raw: bytes
    few: Annotated[bytes, Cap(4, 2)]
    maybe: int | None
    many: tuple[Point, ...]
    pair: tuple[str, int]
    table: dict[str, Point]
    mode: Literal["off", "on"]
    point: Point
    colour: Colour
    level: Level
    anything: object


CODEC = Codec([Ping, Everything])

EVERYTHING = Everything(
    number=2**64 - 1,
    small=-3,
    flag=True,
    ratio=0.5,
    text="tëxt",
    short="12345",
    raw=b"\0\xff",
    few=b"ab",
    maybe=None,
    many=(Point(1, None), Point(-(2**63), "p")),
    pair=("a", 1),
    table={"k": Point(0, "")},
    mode="on",
    point=Point(3, "q"),
    colour=Colour.BLUE,
    level=Level.HIGH,
    anything={"a": [1, None, {"b": b"c"}], "d": True, "e": 1.5},
)


class Served:
    """A listener whose channels and sockets are collected; echoes every message if asked to."""

    def __init__(
        self,
        *,
        secret: Secret = SECRET,
        echo: bool = False,
        limits: ChannelLimits = DEFAULT_LIMITS,
        **options: Any,
    ) -> None:
        self.listener = Listener(secret=secret, **options)
        self.channels: asyncio.Queue[Channel] = asyncio.Queue()
        self.opened: list[Channel] = []
        self.messages: list[Any] = []
        self.ended: list[TransportError | None] = []
        self._echo = echo
        self.listener.serve_channels(self._take, codec=CODEC, hello=lambda: {"name": "server", "n": [1, 2]}, limits=limits)

    def _take(self, channel: Channel) -> None:
        def on_message(message: Any) -> None:
            self.messages.append(message)
            if self._echo:
                channel.send_nowait(message)

        channel.attach(on_message, self.ended.append)
        self.opened.append(channel)
        self.channels.put_nowait(channel)

    async def close(self) -> None:
        await self.listener.close()
        await asyncio.gather(*(channel.close() for channel in self.opened))


class RawPeer:
    """A peer that says bytes, not messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = FrameDecoder(1 << 20)

    @classmethod
    async def dial(cls, url: str, first: bytes = encode_preamble(CTRL)) -> RawPeer:
        host, port = url.removeprefix("tcp://").rsplit(":", 1)
        sock = socket.socket()
        sock.setblocking(False)
        peer = cls(sock)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        except OSError:
            peer.close()
            raise
        await peer.say(first)
        return peer

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def frame(self, payload: bytes) -> None:
        await self.say(encode_frame(payload, 1 << 30))

    async def hear(self) -> bytes | None:
        """The next payload, or None once the other side has closed."""
        while (payload := self.decoder.pop()) is None:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.decoder.push(data)
        return payload

    async def shake(self, handshake: Handshake) -> Handshake:
        """Go through a handshake, until it is done, has failed, or the other side closes."""
        for payload in handshake.start():
            await self.frame(payload)
        while not handshake.done and handshake.error is None and (heard := await self.hear()) is not None:
            for payload in handshake.receive(heard):
                await self.frame(payload)
        return handshake

    async def refused(self) -> None:
        """Wait until the other side closes, whatever it says before."""
        while await self.hear() is not None:
            pass

    def close(self) -> None:
        self.sock.close()


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until *condition* holds; the test's timeout bounds it."""
    while not condition():
        await asyncio.sleep(0.001)
