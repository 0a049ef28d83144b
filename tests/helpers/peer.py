"""A member in a process of its own, told what to do by lines of JSON: the process's side.

The main thread waits for things to be blocked by; the member's user is an event loop on a second thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import queue
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Answer = Any


def weights(value: float, num_tensors: int, numel: int) -> dict[str, Any]:
    """Tensors that all hold the one value."""
    import torch

    return {f"layer.{index}": torch.full((numel,), float(value)) for index in range(num_tensors)}


def block(how: str, seconds: float) -> None:
    """Keep this thread busy."""
    if how == "sleep":
        time.sleep(seconds)
    elif how == "gil":
        # PyDLL does not release the GIL around the call.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    elif how == "matmul":
        import torch

        matrix, until = torch.ones(1024, 1024), time.monotonic() + seconds
        while time.monotonic() < until:
            torch.mm(matrix, matrix)
    else:
        raise ValueError(how)


class Peer:
    """Runs commands; each is a coroutine method."""

    def __init__(self, main: queue.SimpleQueue[Callable[[], object] | None], say: Callable[[dict[str, Any]], None]) -> None:
        self._main = main
        self._say = say
        self._transports: dict[str, Any] = {}
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._seen: dict[str, list[dict[str, Any]]] = {}
        self._held: dict[str, Any] = {}
        self._older: list[Any] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, url: str, role: str, config: dict[str, Any] | None = None, key: str = "", **arguments: Any) -> Answer:
        import wtransport

        settings = dict(config or {})
        if "recorder_dir" in settings:
            settings["recorder_dir"] = Path(settings["recorder_dir"])
        transport = wtransport.connect(url, role=role, config=wtransport.TransportConfig(**settings), **arguments)
        self._events[key] = []
        self._spawn(self._listen(transport, key))
        await asyncio.sleep(0)
        self._transports[key] = transport
        await transport.open()
        return {"name": transport.profile.name}

    async def serve(self, url: str, config: dict[str, Any]) -> Answer:
        """Host the coordinator alone; returns its address."""
        from wtransport.config import TransportConfig
        from wtransport.service.standalone import serve as host

        bound: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._spawn(host(url, TransportConfig(**config), asyncio.Event(), bound.set_result))
        return (await bound)[0]

    async def bind(self, num_tensors: int = 4, numel: int = 1024, key: str = "", names: list[str] | None = None) -> Answer:
        wanted = weights(0, num_tensors, numel)
        return await self._transports[key].bind(wanted if names is None else {name: next(iter(wanted.values())) for name in names})

    async def put(
        self,
        version: int,
        num_tensors: int = 4,
        numel: int = 1024,
        value: float | None = None,
        key: str = "",
        names: list[str] | None = None,
        **arguments: Any,
    ) -> Answer:
        source = weights(version if value is None else value, num_tensors, numel)
        if names is not None:
            source = {name: next(iter(source.values())).clone() for name in names}
        receipt = await self._transports[key].put(source, version, **arguments)
        return _receipt(receipt)

    async def put_many(self, first: int, last: int, num_tensors: int = 4, numel: int = 1024, key: str = "") -> Answer:
        """Put versions one after the other from the same tensors; counts outcomes, and keeps what was lost."""
        outcomes: dict[str, int] = {}
        lost: list[dict[str, Any]] = []
        source = weights(0, num_tensors, numel)
        for version in range(first, last + 1):
            for tensor in source.values():
                tensor.fill_(version)
            receipt = _receipt(await self._transports[key].put(source, version))
            for outcome in receipt["outcomes"].values():
                outcomes[outcome["outcome"]] = outcomes.get(outcome["outcome"], 0) + 1
            lost += [item | {"version": version} for item in receipt["outcomes"].values() if item["outcome"] == "lost"]
        return {"outcomes": outcomes, "lost": lost}

    async def get(self, version: int | None = None, timeout_s: float | None = None, key: str = "", keep: bool = False) -> Answer:
        update = await self._transports[key].get(version, timeout_s=timeout_s)
        answer = _look(update)
        if keep:
            self._older.append(self._held.get(key))  # one kept before stays kept
            self._held[key] = update
        else:
            update.release()
        return answer

    async def ready(self, timeout_s: float | None = None, key: str = "") -> Answer:
        return await self._transports[key].ready(timeout_s=timeout_s)

    async def look(self, key: str = "") -> Answer:
        return _look(self._held[key])

    async def release(self, key: str = "") -> Answer:
        self._held.pop(key).release()

    async def follow(self, key: str = "", most_s: float = 0.0) -> Answer:
        self._seen[key] = []
        self._spawn(self._follow(key, most_s))

    async def seen(self, key: str = "") -> Answer:
        return self._seen[key]

    async def members(self, key: str = "") -> Answer:
        return [dataclasses.asdict(item) for item in await self._transports[key].members()]

    async def links(self, key: str = "") -> Answer:
        return [[item.peer, item.direction, item.backend] for item in await self._transports[key].describe()]

    async def events(self, key: str = "") -> Answer:
        return self._events[key]

    async def exclude(self, name: str, reason: str, key: str = "") -> Answer:
        await self._transports[key].exclude(name, reason)

    async def admit(self, name: str, key: str = "") -> Answer:
        await self._transports[key].admit(name)

    async def replace(self, old: str, new: str, key: str = "") -> Answer:
        await self._transports[key].replace(old, new)

    async def close(self, key: str = "") -> Answer:
        await self._transports[key].close()

    async def block(self, where: str, how: str, seconds: float) -> Answer:
        if where == "main":
            self._main.put(lambda: block(how, seconds))
        else:
            block(how, seconds)

    async def fork(self) -> Answer:
        """Fork a child that uses the transport as far as it may, collects garbage and exits; returns what it printed."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(writer, dict(self._transports))
        os.close(writer)
        with open(reader, "rb") as pipe:
            text = await asyncio.to_thread(pipe.read)
        return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "text": text.decode()}

    async def linger(self, raw: bool = False) -> Answer:
        """Fork a child that sleeps, and outlives this process; returns its process id. *raw*: as a C library forks, unknown to Python."""
        pid = ctypes.PyDLL(None).fork() if raw else os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return pid

    async def load(self, num_workers: int) -> Answer:
        """Read a data set with worker processes, forked from here."""
        import torch

        def read() -> list[int]:
            loader = torch.utils.data.DataLoader(list(range(64)), batch_size=8, num_workers=num_workers)  # type: ignore[arg-type, var-annotated]
            return [int(item) for batch in loader for item in batch]

        return await asyncio.to_thread(read)

    async def descriptors(self) -> Answer:
        return len(os.listdir("/proc/self/fd"))

    async def _listen(self, transport: Any, key: str) -> None:
        async for event in transport.events():
            self._events[key].append({"kind": event.kind, "member": event.member, "version": event.version, "detail": event.detail})

    async def _follow(self, key: str, most_s: float) -> None:
        draw = random.Random(os.getpid())
        async for update in self._transports[key].updates():
            with update:
                self._seen[key].append(_look(update))
                if most_s:
                    await asyncio.sleep(draw.uniform(0, most_s))
                    if (after := _look(update)) != self._seen[key][-1]:
                        self._seen[key].append(after | {"changed": True})

    def _spawn(self, call: Any) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, sock: socket.socket) -> None:
        """Serve until the socket ends."""
        reader, _ = await asyncio.open_connection(sock=sock)
        while line := await reader.readline():
            self._spawn(self._answer(json.loads(line)))
        for transport in self._transports.values():
            with contextlib.suppress(Exception):
                await transport.close()

    async def _answer(self, command: dict[str, Any]) -> None:
        number, verb = command.pop("id"), command.pop("do")
        try:
            value = await getattr(self, verb)(**command)
        except Exception as error:
            self._say({"id": number, "error": type(error).__name__, "message": str(error), "fields": _fields(error)})
        else:
            self._say({"id": number, "value": value})


def serve(sock: socket.socket) -> None:
    """Run a peer that *sock* commands until it ends."""
    main: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
    lock = threading.Lock()
    answers = sock.dup()

    def say(answer: dict[str, Any]) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            answers.sendall(json.dumps(answer).encode() + b"\n")

    def loop() -> None:
        try:
            asyncio.run(Peer(main, say).run(sock))
        finally:
            main.put(None)

    thread = threading.Thread(target=loop, name="peer-loop")
    thread.start()
    while (call := main.get()) is not None:
        call()
    thread.join()


def _look(update: Any) -> dict[str, Any]:
    values = sorted({float(value) for tensor in update.tensors.values() for value in (tensor.min(), tensor.max())})
    return {"version": update.version, "seq": update.seq, "publication": update.publication, "values": values}


def _receipt(receipt: Any) -> dict[str, Any]:
    outcomes = {}
    for name, outcome in receipt.outcomes.items():
        told: dict[str, Any] = {"outcome": outcome.name}
        for field in ("by", "reason", "holds", "nbytes"):
            if hasattr(outcome, field):
                told[field] = getattr(outcome, field)
        if hasattr(outcome, "cause"):
            told |= {"cause": str(outcome.cause), "code": outcome.cause.code, "fields": _fields(outcome.cause)}
        outcomes[name] = told
    return {"version": receipt.version, "seconds": receipt.seconds, "publication": receipt.publication, "outcomes": outcomes}


def _fields(error: Exception) -> dict[str, Any]:
    return {name: value for name in ("peer", "version", "phase", "rank", "tensor") if (value := getattr(error, name, None)) is not None}


def _child(writer: int, transports: dict[str, Any]) -> None:
    code = 1
    try:
        lines = []
        for transport in transports.values():
            try:
                transport.blocking.members()
                lines.append("served")
            except Exception as error:
                lines.append(type(error).__name__)
            asyncio.run(transport.close())
        transports.clear()
        import gc

        gc.collect()
        os.write(writer, " ".join(lines).encode())
        code = 0
    finally:
        os._exit(code)
