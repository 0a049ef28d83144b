"""One end of an endpoint in a process of its own, told what to do by lines of JSON.

The tests' side is :class:`PeerProcess`; ``python -m wtransport.testing.conformance.process
FACTORY`` is the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from wtransport._native import SharedRegion
from wtransport.backends.base import RemoteRegion
from wtransport.backends.deadline import Deadline
from wtransport.config import TransportConfig
from wtransport.errors import TransportError
from wtransport.testing.conformance.pair import (
    TIMEOUT_S,
    local_region,
    make_from,
    open_driver,
    random_bytes,
    whole,
)
from wtransport.weights.digest import digest_bytes

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator

    from wtransport.backends.base import Backend, InitiatorEndpoint, Listener, OwnerEndpoint
    from wtransport.backends.work import Work

Answer = dict[str, Any]


class PeerProcess:
    """A child process that runs the other end.

    Args:
        process: The child.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, do: str, **arguments: object) -> Answer:
        """Have the child do something; return its answer.

        Raises:
            EOFError: If the child ended instead.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise EOFError("the child has no pipes")
        stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await stdin.drain()
        line = await asyncio.wait_for(stdout.readline(), TIMEOUT_S)
        if not line:
            raise EOFError(f"the child ended while it was to {do}")
        answer: Answer = json.loads(line)
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self) -> None:
        """Kill and reap it; idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


@contextlib.asynccontextmanager
async def peer_process(factory: str, config: TransportConfig) -> AsyncIterator[PeerProcess]:
    """Start a child whose backend *factory* makes; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, factory, str(config.streams)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    peer = PeerProcess(process)
    try:
        yield peer
    finally:
        await peer.end()


class _Peer:
    """The child's side; every public method answers one command."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._listener: Listener
        self._owner: OwnerEndpoint
        self._initiator: InitiatorEndpoint
        self._memory: SharedRegion
        self._admission: asyncio.Future[OwnerEndpoint]

    async def listen(self) -> Answer:
        self._listener = await self._backend.listen("")
        return {"address": self._listener.address}

    async def admit(self, token: str, epoch: int) -> Answer:
        self._admission = self._listener.admit(bytes.fromhex(token), epoch, "parent")
        return {}

    async def grant(self, nbytes: int, writable: bool, seed: int) -> Answer:
        self._owner = await asyncio.wait_for(self._admission, TIMEOUT_S)
        self._memory = SharedRegion.create(nbytes)
        if seed:
            self._memory.view()[:] = random_bytes(nbytes, seed)
        region = self._backend.register(self._memory, None)
        remote = self._owner.grant(region, generation=1, writable=writable, num_digests=1)
        return {"remote": remote.to_wire()}

    async def digest(self) -> Answer:
        return {"digest": digest_bytes(self._memory.view(), 0)}

    async def connect(self, address: str, token: str, epoch: int) -> Answer:
        self._initiator = await self._backend.connect(address, token=bytes.fromhex(token), epoch=epoch, peer="parent", timeout_s=TIMEOUT_S)
        return {}

    async def read(self, remote: object, nbytes: int) -> Answer:
        got = np.zeros(nbytes, np.uint8)
        await self._move(self._initiator.read, got, RemoteRegion.from_wire(remote))
        return {"digest": digest_bytes(got, 0)}

    async def write(self, remote: object, nbytes: int, seed: int) -> Answer:
        data = random_bytes(nbytes, seed)
        await self._move(self._initiator.write, data, RemoteRegion.from_wire(remote))
        return {"digest": digest_bytes(data, 0)}

    async def start_writing(self, remote: object, nbytes: int) -> Answer:
        """Write over and over, until killed."""
        target, data = RemoteRegion.from_wire(remote), random_bytes(nbytes)
        await self._move(self._initiator.write, data, target)

        async def go_on() -> None:
            while True:
                await self._move(self._initiator.write, data, target)

        self._writing = asyncio.create_task(go_on())
        return {}

    async def close(self) -> Answer:
        for name in ("_initiator", "_owner", "_listener"):
            if hasattr(self, name):
                await getattr(self, name).close()
        return {}

    def _move(self, method: Any, data: Any, remote: RemoteRegion) -> Work:
        work: Work = method(
            self._backend.register(local_region(data), data),
            whole(data.nbytes),
            remote,
            num_digests=1,
            digest=True,
            deadline=Deadline(TIMEOUT_S),
        )
        return work


async def _serve(factory: str, streams: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    config = TransportConfig(copy_threads=1, streams=streams, abort_grace_s=1.0)
    async with open_driver(config) as driver:
        peer = _Peer(make_from(factory, driver, config))
        while line := await reader.readline():
            command = json.loads(line)
            try:
                answer = await getattr(peer, command.pop("do"))(**command)
            except TransportError as error:
                answer = {"error": error.code, "message": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
