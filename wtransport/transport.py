"""Transport: a member's handle on a job, and ``connect`` that makes one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import secrets
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from wtransport.arguments import check_member, positive_seconds, version_number
from wtransport.blocking import BlockingTransport
from wtransport.config import TransportConfig
from wtransport.errors import BusyError, ClosedError, ConfigError, TransportError, UnsupportedError, exhausted
from wtransport.eventlog import EventLog
from wtransport.handle import PutHandle, chain
from wtransport.memory.inspector import Inspector
from wtransport.orchestration import Orchestration
from wtransport.service.abandoned import close_abandoned
from wtransport.service.member import MemberService
from wtransport.service.source.putrecord import PutRecord
from wtransport.service.thread import ServiceThread
from wtransport.session.membership import Profile
from wtransport.taking import take
from wtransport.waiting import shielded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from types import TracebackType

    from wtransport.session.outcomes import Receipt
    from wtransport.update import Update

Role = Literal["trainer", "generator"]
T = TypeVar("T")


def connect(
    url: str,
    *,
    role: Role,
    group: str | None = None,
    rank: int = 0,
    world_size: int = 1,
    name: str | None = None,
    backend: str = "auto",
    takeover: bool = False,
    config: TransportConfig | None = None,
) -> Transport:
    """Describe a member of the job at *url*; ``async with``, or ``await transport.open()``, joins it.

    Members start in any order. Trainer rank 0 hosts the coordinator at *url*, unless something answers there already (``wtransport
    serve``), or ``hosts_coordinator`` says that something will.

    Args:
        url: The coordinator's address: ``tcp://host:port``, ``tcp://[v6]:port``, ``unix:///path`` or ``unix://@name``.
        role: ``trainer`` puts, ``generator`` gets.
        group: Generators of one group (an engine's ranks) are shown the same versions in the same order.
        rank: This member's rank among *world_size* trainers, or in its group.
        world_size: Trainer ranks, or ranks of the group.
        name: Unique among live members. Whoever has the name, or the rank, keeps it while it is alive, and a second one is refused; a
            restarted member waits until its old self is found lost, and takes its place.
        backend: ``auto``, or the name of one backend to insist on.
        takeover: Take the place at once, and fence the member that has it, alive or not.
        config: Settings; the defaults if None.

    Raises:
        ConfigError: If the arguments contradict each other; nothing was started.
    """
    check_member(
        url, role=role, rank=rank, world_size=world_size, group=group, name=name, backend=backend, takeover=takeover, config=config
    )
    default = f"trainer-{rank}" if role == "trainer" else f"{group or 'generator'}-{rank}-{socket.gethostname()}-{secrets.token_hex(4)}"
    profile = Profile(role, group or "", rank, world_size, name or default)
    return Transport(url, profile, backend, config or TransportConfig(), takeover=takeover)


class Transport(Orchestration):
    """A member's handle on a job; made by ``connect``.

    All coroutines may be awaited from any event loop (asyncio or uvloop), of any thread; ``blocking`` serves code without one. A
    forked child owns nothing of it.
    """

    def __init__(self, url: str, profile: Profile, backend: str, config: TransportConfig, *, takeover: bool = False) -> None:
        self.url = url
        self.profile = profile
        self.config = config
        self._backend = backend
        self._takeover = takeover
        self._thread: ServiceThread | None = None
        self._service: MemberService | None = None
        self._failure: TransportError | None = None
        self._events = EventLog()
        self._inspector = Inspector()
        self._closed = False
        self._pid = os.getpid()

    # Life.

    async def open(self) -> Self:
        """Join the job; waits for the coordinator up to ``connect_timeout_s``.

        Raises:
            ConnectError: If nobody answered; the message lists what was tried.
            JoinRefusedError: If the coordinator does not admit this member: its name or rank is a live member's, say.
            AuthError: If one side does not know the other's secret.
        """
        if self._closed or self._service is not None:
            raise ClosedError("this transport is closed") if self._closed else BusyError("this transport is open already")
        hosts = self.profile.role == "trainer" and self.profile.rank == 0 and self.config.hosts_coordinator
        failed: weakref.WeakMethod[Any] = weakref.WeakMethod(self._failed)
        try:
            self._thread = ServiceThread(f"wtransport-{self.profile.name}")
        except OSError as error:
            if (none_left := exhausted(error, "start the transport's event loop")) is None:
                raise
            raise none_left from error
        try:
            service = self._service = await self._run(self._start(hosts, lambda error: _tell(failed, error)))
        except BaseException:
            await asyncio.to_thread(self._thread.stop)
            self._thread = None
            raise
        self._finalizer = weakref.finalize(self, close_abandoned, self.profile.name, self._thread, service)
        return self

    async def _start(self, hosts: bool, on_failed: Callable[[TransportError], None]) -> MemberService:
        assert self._thread is not None
        service = MemberService(
            self.url,
            self.profile,
            self.config,
            backend=self._backend,
            takeover=self._takeover,
            hosts=hosts,
            post=self._thread.post,
            on_event=self._events.add,
            on_failed=on_failed,
        )
        await service.start()
        return service

    async def close(self, reason: str = "closed") -> None:
        """Leave the job in order; works under way settle first. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._events.close()
        service, thread = self._service, self._thread
        self._service = None
        if service is not None and thread is not None:
            self._finalizer.detach()
            closing = thread.submit(service.close(reason))
            try:
                await shielded(closing)
            except asyncio.CancelledError:
                # It goes on leaving in order; only nobody waits for it any more.
                closing.add_done_callback(lambda _: threading.Thread(target=thread.stop, name="wt-close").start())
                raise
            finally:
                if closing.done():
                    await asyncio.to_thread(thread.stop)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        await self.close("closed" if error is None else f"{type(error).__name__}: {error}"[:200])

    # Trainers.

    async def put(self, weights: Any, version: int, *, snapshot: bool = False, rewind: bool = False) -> Receipt:
        """Put one version to every generator.

        The caller promises that nobody writes to *weights* until this returns (with *snapshot*: until the copy is made). Their memory is
        kept alive until no native work is over it. Cancelling withdraws the version: what has not started is dropped, what is in flight
        settles, the sinks are told.

        Args:
            weights: ``Mapping[str, Tensor]`` or an ``nn.Module`` (its parameters and persistent buffers).
            version: Rises with every put.
            snapshot: Copy the weights aside first, so that late joiners can be served from this version whatever training does.
            rewind: The only way to put a version that does not rise.

        Returns:
            The receipt, once each generator is delivered, behind, overtaken, ahead, lost or excluded.

        Raises:
            VersionError: If the version does not rise; nothing moved.
            WeightsError: If the weights cannot be moved as they are; nothing moved.
            ManifestMismatchError: If they fit none of the generators that followed until now; nothing moved.
            SourceChangedError: If the weights were written to meanwhile; the tensors are named.
            WithdrawnError: If another rank withdrew the version.
            UndeliveredError: If it reached fewer generators than ``straggler`` or ``min_delivered`` ask for; the version stands.
        """
        starting = self._submit(self._put(weights, version, snapshot=snapshot, nowait=False, rewind=rewind))
        try:
            record = await shielded(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda future: None if future.exception() else self._withdraw(future.result()))
            raise
        try:
            return await shielded(record.done)
        except asyncio.CancelledError:
            self._withdraw(record)
            raise

    def put_nowait(self, weights: Any, version: int, *, snapshot: bool = False, rewind: bool = False) -> PutHandle:
        """Start a put and return at once; training goes on.

        Without *snapshot* the weights are read again after the copy, and a change between fails the version, naming the tensors.
        ``await handle.source_free`` tells when they may be written to.

        Raises:
            ConfigError: With ``verify="off"`` and no *snapshot*: a change could not be found.
        """
        if self.config.verify == "off" and not snapshot:
            raise ConfigError("put_nowait with verify='off' needs snapshot=True: a source that changes could not be found")
        thread, service = self._serving()
        if self.profile.role != "trainer":
            raise UnsupportedError("only trainers put")
        number = version_number(version)
        seen = self._inspector.look(weights)
        started = concurrent.futures.Future[PutRecord]()
        done: concurrent.futures.Future[Receipt] = concurrent.futures.Future()
        free: concurrent.futures.Future[None] = concurrent.futures.Future()
        starting = thread.submit(service.source.put(seen, number, snapshot=snapshot, nowait=True, rewind=rewind))

        def begun(future: concurrent.futures.Future[PutRecord]) -> None:
            error = future.exception()
            if error is not None:
                started.set_exception(error)
                done.set_exception(error)
                free.set_result(None)
                return
            record = future.result()
            started.set_result(record)
            chain(record.done, done)
            chain(record.source_free, free)

        starting.add_done_callback(begun)

        def withdraw() -> None:
            started.add_done_callback(lambda future: None if future.exception() else self._withdraw(future.result()))

        return PutHandle(number, done, free, withdraw)

    # Generators.

    async def bind(self, weights: Any) -> int:
        """State what this generator wants: the names, dtypes and shapes of *weights* (a mapping or a module); nothing is written to it.

        Two landing slots are mapped and faulted in. A second bind makes a new binding; puts to the old one settle and are discarded.

        Returns:
            Bytes of landing memory.

        Raises:
            WeightsError: If such tensors cannot land.
            ManifestMismatchError: If it is known already that the trainers hold something else.
        """
        return await self._run(self._landing("bind", weights))

    async def updates(self) -> AsyncIterator[Update]:
        """Yield the newest complete version whenever there is a newer one; what was overtaken meanwhile is skipped.

        Each update is leased until it is released (``with update:``). Ends when the transport is closed.

        Raises:
            ManifestMismatchError: If the binding does not fit what the trainers put.
        """
        after = 0
        while (update := await self._next_update(after)) is not None:
            after = update.seq
            yield update

    async def _next_update(self, after: int) -> Update | None:
        """One step of ``updates``: the newest version shown after the one whose ``seq`` is *after*; None once the transport is closed."""
        try:
            return await self._take("next", after, None)
        except ClosedError:
            return None

    async def get(self, version: int | None = None, *, timeout_s: float | None = None) -> Update:
        """The newest version there is, pulled from any holder if it is not here; or *version*, or a newer one.

        Args:
            version: Wait for at least this one; None takes what is newest now.
            timeout_s: Deadline; ``connect_timeout_s`` if None.

        Raises:
            UnavailableError: If no live member holds it.
            ManifestMismatchError: If the binding does not fit what its holders have.
            DeadlineError: If it did not come in time.
        """
        if version is not None:
            version = version_number(version)
        wait_s = self.config.connect_timeout_s if timeout_s is None else positive_seconds("timeout_s", timeout_s)
        return await self._take("get", version, wait_s)

    async def ready(self, *, timeout_s: float | None = None) -> int:
        """Wait until this generator holds the job's current version, or a newer one; what a load balancer may ask before it sends work.

        A generator that starts late, or under the name of one that died, pulls that version from any member that holds it. Cancelling
        stops the wait only.

        Args:
            timeout_s: Deadline; ``connect_timeout_s`` if None.

        Returns:
            The version held.

        Raises:
            UnavailableError: If no live member can give it.
            DeadlineError: If it did not come in time, or nothing was put.
        """
        wait_s = self.config.connect_timeout_s if timeout_s is None else positive_seconds("timeout_s", timeout_s)
        version: int = await self._run(self._landing("ready", wait_s))
        return version

    # Everybody (and see Orchestration).

    @property
    def blocking(self) -> BlockingTransport:
        """The same object for code that runs no event loop."""
        return BlockingTransport(self)

    # Inside.

    async def _put(self, weights: Any, version: object, *, snapshot: bool, nowait: bool, rewind: bool) -> PutRecord:
        _, service = self._serving()
        if self.profile.role != "trainer":
            raise UnsupportedError("only trainers put")
        number = version_number(version)
        return await service.source.put(self._inspector.look(weights), number, snapshot=snapshot, nowait=nowait, rewind=rewind)

    def _withdraw(self, record: PutRecord) -> None:
        if self._thread is not None and self._service is not None:
            self._thread.post(self._service.source.withdraw, record.number)

    async def _landing(self, method: str, *args: Any) -> Any:
        _, service = self._serving()
        if service.sink is None:
            raise UnsupportedError("only generators bind and get")
        return await getattr(service.sink, method)(*args)

    async def _take(self, method: str, *args: Any) -> Update:
        thread, _ = self._serving()
        return await take(thread, lambda: self._landing(method, *args))

    def _serving(self) -> tuple[ServiceThread, MemberService]:
        if self._failure is not None:
            raise self._failure.copied()
        if self._thread is None or self._service is None:
            raise ClosedError("this transport is closed" if self._closed else "open the transport first: async with connect(...)")
        return self._thread, self._service

    def _failed(self, error: TransportError) -> None:
        self._failure = error
        self._events.close()

    async def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run *call* on the service's loop; cancelling the await cancels it there."""
        try:
            return await asyncio.wrap_future(self._submit(call))
        except OSError as error:
            if (none_left := exhausted(error, "in the transport's service")) is None:
                raise
            raise none_left from error

    def _submit(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._thread is None:
            call.close()
            raise ClosedError("this transport is closed" if self._closed else "open the transport first: async with connect(...)")
        return self._thread.submit(call)


def _tell(failed: weakref.WeakMethod[Any], error: TransportError) -> None:
    method = failed()
    if method is not None:
        method(error)
