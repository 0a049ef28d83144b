"""A member in a process of its own, told what to do by lines of JSON: the process's side.

The main thread waits for things to be blocked by; the member's user is an event loop on a second thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import queue
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wtransport.testing.cluster.tricks import Tricks

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Answer = Any


def weights(value: float, num_tensors: int, numel: int) -> dict[str, Any]:
    """Tensors that all hold the one value."""
    import torch

    return {f"layer.{index}": torch.full((numel,), float(value)) for index in range(num_tensors)}


class Peer(Tricks):
    """Runs commands; each is a coroutine method."""

    def __init__(self, main: queue.SimpleQueue[Callable[[], object] | None], say: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(main)
        self._say = say
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._seen: dict[str, list[dict[str, Any]]] = {}
        self._held: dict[str, Any] = {}
        self._older: list[Any] = []
        self._source: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(
        self, url: str, role: Literal["trainer", "generator"], config: dict[str, Any] | None = None, key: str = "", **arguments: Any
    ) -> Answer:
        """Join the job as *role*; further arguments as for ``wtransport.connect``."""
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
        from wtransport.service.coordinator.standalone import serve as host

        bound: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._spawn(host(url, TransportConfig(**config), asyncio.Event(), bound.set_result))
        return (await bound)[0]

    async def bind(self, num_tensors: int = 4, numel: int = 1024, key: str = "", names: list[str] | None = None) -> Answer:
        """Bind float32 tensors of *numel* elements each."""
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
        mark: bool = False,
        **arguments: Any,
    ) -> Answer:
        """Put tensors that all hold *value*, by default the version's number; says when it began and ended.

        *mark*: the tensors of the put before, of which only the first and last elements change, which costs no time.
        """
        filled = float(version if value is None else value)
        source = self._source if mark and self._source else weights(filled, num_tensors, numel)
        if names is not None:
            source = {name: next(iter(source.values())).clone() for name in names}
        if mark:
            self._source = source
            for tensor in source.values():
                tensor[0] = tensor[-1] = filled
        start = time.monotonic()
        receipt = await self._transports[key].put(source, version, **arguments)
        return _receipt(receipt) | {"start": start, "end": time.monotonic()}

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
        """Get a version; *keep* holds its lease until ``release``."""
        update = await self._transports[key].get(version, timeout_s=timeout_s)
        answer = _look(update)
        if keep:
            self._older.append(self._held.get(key))  # one kept before stays kept
            self._held[key] = update
        else:
            update.release()
        return answer

    async def ready(self, timeout_s: float | None = None, key: str = "") -> Answer:
        """Wait until the current version is held."""
        return await self._transports[key].ready(timeout_s=timeout_s)

    async def look(self, key: str = "") -> Answer:
        """What the kept update holds now."""
        return _look(self._held[key])

    async def release(self, key: str = "") -> Answer:
        """End the kept lease."""
        self._held.pop(key).release()

    async def follow(self, key: str = "", most_s: float = 0.0, marks: bool = False) -> Answer:
        """Follow updates from now on, each held for up to *most_s*; ``seen`` tells which. *marks*: look at first and last elements only."""
        self._seen[key] = []
        self._spawn(self._follow(key, most_s, marks))

    async def seen(self, key: str = "") -> Answer:
        """What was followed so far; ``changed`` marks an update whose bytes did not stay as they were."""
        return self._seen[key]

    async def members(self, key: str = "") -> Answer:
        """What the coordinator says of the members."""
        return [dataclasses.asdict(item) for item in await self._transports[key].members()]

    async def links(self, key: str = "") -> Answer:
        """Peer, direction and backend of each data link."""
        return [[item.peer, item.direction, item.backend] for item in await self._transports[key].describe()]

    async def events(self, key: str = "") -> Answer:
        """Every event so far, with the monotonic second it was heard at."""
        return self._events[key]

    async def exclude(self, name: str, reason: str, key: str = "") -> Answer:
        """Put a member out."""
        await self._transports[key].exclude(name, reason)

    async def admit(self, name: str, key: str = "") -> Answer:
        """Let one come back."""
        await self._transports[key].admit(name)

    async def replace(self, old: str, new: str, key: str = "") -> Answer:
        """Give one's place to another."""
        await self._transports[key].replace(old, new)

    async def close(self, key: str = "") -> Answer:
        """Leave the job."""
        await self._transports[key].close()

    async def _listen(self, transport: Any, key: str) -> None:
        async for event in transport.events():
            fields = {"kind": event.kind, "member": event.member, "version": event.version, "detail": event.detail}
            self._events[key].append(fields | {"at": time.monotonic()})

    async def _follow(self, key: str, most_s: float, marks: bool) -> None:
        draw = random.Random(os.getpid())
        async for update in self._transports[key].updates():
            with update:
                at, before = time.monotonic(), _look(update, marks=marks)
                self._seen[key].append(before | {"at": at})
                if most_s:
                    await asyncio.sleep(draw.uniform(0, most_s))
                    if (after := _look(update, marks=marks)) != before:
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


def _look(update: Any, *, marks: bool = False) -> dict[str, Any]:
    ends = ((tensor[0], tensor[-1]) if marks else (tensor.min(), tensor.max()) for tensor in update.tensors.values())
    values = sorted({float(value) for pair in ends for value in pair})
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
