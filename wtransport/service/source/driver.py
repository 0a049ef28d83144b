"""The driver of a source: runs its machine's writes, takes digests, and resolves the user's puts."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from wtransport import _native
from wtransport.backends.base import RemoteRegion
from wtransport.errors import ClosedError, InternalError, PeerLostError, TransportError, WithdrawnError, error_classes
from wtransport.memory.snapshot import Snapshot
from wtransport.recorder.format import Op
from wtransport.service import local
from wtransport.service.pump import Pump
from wtransport.service.source.downstream import Downstreams
from wtransport.service.source.followers import Followers
from wtransport.service.source.plans import Digests, SinkPlan, content_digest, name_weights, plan_for
from wtransport.service.source.putrecord import PutRecord
from wtransport.service.source.receipts import Receipts, told, undelivered
from wtransport.service.source.writing import Writing
from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity, MemberId
from wtransport.session.source.machine import Source
from wtransport.weights.assign import Assignment
from wtransport.weights.manifest import Manifest
from wtransport.weights.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.memory.tensors import SourceWeights
    from wtransport.service.context import Context

# What a put comes to at a generator that has its version, or a newer one.
_REACHED = ("delivered", "overtaken", "ahead")


class SourceDriver:
    """Everything a member does as a source.

    Args:
        context: The member's means.
        emit: Hands an event to the user.
    """

    def __init__(self, context: Context, emit: Callable[[msg.EventNotice], None]) -> None:
        self._context = context
        self._emit = emit
        config, profile = context.config, context.membership.profile
        trainer = profile.role == "trainer"
        self.machine = Source(
            rank=profile.rank if trainer else 0,
            world_size=profile.world_size if trainer else 1,
            credit_timeout_s=config.credit_timeout_s if config.straggler == "behind" else config.straggler_timeout_s,
            straggler=config.straggler,
            stall_timeout_s=config.stall_timeout_s,
        )
        self.links = Downstreams(context, self._message, self._linked, self._gone)
        self._followers = Followers(self.machine.rank, alone=self.machine.world_size == 1)
        self.records: dict[int, PutRecord] = {}
        self.plans: dict[tuple[MemberId, str], SinkPlan] = {}
        self.remotes: dict[tuple[MemberId, int], RemoteRegion] = {}
        self._writings: dict[int, Writing] = {}
        self._manifests: dict[str, Manifest] = {}
        self._weights: dict[bytes, Digests] = {}
        self._numbers = itertools.count(1)
        # Why there is no coordinator at the moment.
        self.coordinator_lost: TransportError | None = None
        self._order = asyncio.Lock()
        self._closed = False
        # One name for as long as the transport lives: what is held outlives the incarnation it was held under.
        self._pull_feed = f"pull:{context.membership.member}"
        # The native description of the weights put last: it owns no memory, and the same weights have the same one.
        self._described: tuple[object, _native.LocalRegion] = (None, _native.LocalRegion([]))
        self._receipts = Receipts()
        self.pump = Pump(
            self.machine,
            {
                act.Send: self._send,
                act.StartWrite: self._start_write,
                act.CancelWrite: lambda action: self._writings[action.delivery].cancel() if action.delivery in self._writings else None,
                act.SendPart: self._send_part,
                act.PutDone: self._put_done,
                act.PutError: self._put_error,
                act.ComputeDigest: self._compute_digest,
                act.PutAdmittedAction: self._admitted,
                act.ReleasePut: self._release,
            },
        )

    # The user.

    async def put(self, weights: SourceWeights, version: int, *, snapshot: bool, nowait: bool, rewind: bool) -> PutRecord:
        """Start a put; returns once it is under way (with *snapshot*, once the copy is made)."""
        async with self._order:  # a put behind one that copies its weights first stays behind it
            return await self._put(weights, version, snapshot=snapshot, nowait=nowait, rewind=rewind)

    async def _put(self, weights: SourceWeights, version: int, *, snapshot: bool, nowait: bool, rewind: bool) -> PutRecord:
        context = self._context
        self._check_open(version)
        if all(known.digest != weights.manifest.digest for feed, known in self._manifests.items() if not feed.startswith("pull:")):
            await self._followers.check(weights.manifest, self.machine.targets, version)
            self._check_open(version)
        number = next(self._numbers)
        if self._described[0] is not weights.blocks:
            self._described = (weights.blocks, _native.LocalRegion(list(weights.blocks)))
        record = PutRecord(number, version, weights.manifest, self._described[1], weights, weights=weights, started=context.now)
        record.recheck = context.config.verify == "full" or (nowait and not snapshot)
        if context.recorder is not None:
            record.flight = context.recorder.begin(Op.PUT, version=version, rank=self.machine.rank, nbytes=weights.manifest.nbytes)
        if snapshot:
            await self._take_snapshot(record)
        self.records[number] = record
        self.machine.put(number, version, weights.manifest.digest, "snapshot" if snapshot else "reference", context.now, rewind=rewind)
        self.pump.run()
        return record

    def hold(
        self, identity: Identity, parts: int, manifest: Manifest, memory: _native.SharedRegion, owner: object, own: Digests | None, pin: Any
    ) -> int:
        """Offer a slot that holds *identity* whole, put in so many *parts*, to those who pull; returns the number for ``release``."""
        number = next(self._numbers)
        feed = self._pull_feed
        self._manifests[feed] = manifest
        self.records[number] = PutRecord(number, identity.version, manifest, memory, owner, own=own, identity=identity, pin=pin)
        self.machine.hold(number, identity, feed, manifest.digest, parts)
        self.pump.run()
        return number

    def release(self, number: int) -> None:
        """A held slot is about to be written again."""
        self.machine.release(number, self._context.now)
        self.pump.run()

    def withdraw(self, number: int) -> None:
        """The user cancelled the put."""
        self.machine.withdraw(number, self._context.now)
        self.pump.run()

    # The coordinator's words.

    def on_message(self, message: object) -> None:
        """A message from the coordinator."""
        dispatch.coordinator_to_source(self.machine, message, self._context.now)
        self.pump.run()

    def on_members(self) -> None:
        """The roster changed."""
        members = self._context.membership.members
        if self._context.membership.profile.role == "trainer":
            self.machine.on_members(self._context.membership.generators(), self._context.now)
        for sink in [item for item in self.links.links if item not in members]:
            self.links.drop(sink, PeerLostError("the generator is not a member any more"))
        self.pump.run()

    async def close(self) -> None:
        """End every link and every write; memory is given back once native work over it has settled."""
        self._closed = True
        closed = ClosedError("the transport was closed")
        self.links.drop_all(closed)
        for record in list(self.records.values()):
            self.machine.withdraw(record.number, self._context.now)
        self.pump.run()
        self.pump.close()
        for record in list(self.records.values()):
            if not record.done.done():
                record.done.set_exception(ClosedError("the transport was closed during the put", version=record.version))
            record.free_source()
            if record.snapshot is not None:
                record.snapshot.close()
        self.records.clear()

    # Links.

    def _linked(self, sink: MemberId) -> None:
        for feed, manifest in self._manifests.items():
            if not feed.startswith("pull:"):
                self._declare(sink, feed, manifest)
        self.machine.on_sink_linked(sink, self._context.now)
        self.pump.run()

    def _gone(self, sink: MemberId, cause: TransportError) -> None:
        self.plans = {key: plan for key, plan in self.plans.items() if key[0] != sink}
        self.remotes = {key: remote for key, remote in self.remotes.items() if key[0] != sink}
        self._followers.gone(sink)
        self.machine.on_sink_gone(sink, cause, self._context.now)
        self.pump.run()

    def _declare(self, sink: MemberId, feed: str, manifest: Manifest) -> None:
        rank, size = (0, 1) if feed.startswith("pull:") else (self.machine.rank, self.machine.world_size)
        self.links.send(sink, msg.SourceManifest(feed, rank, size, manifest.digest, manifest.encoded))

    def _message(self, sink: MemberId, message: object) -> None:
        match message:
            case msg.Want():
                self._context.spawn(self._plan(sink, message))
                return
            case msg.Bound():
                self._followers.bound_anew(sink)
                self.remotes = {key: remote for key, remote in self.remotes.items() if key[0] != sink}
            case msg.Grant():
                self.remotes[sink, message.slot] = RemoteRegion.from_wire(message.remote)
            case msg.Pull() if self._pull_feed in self._manifests:
                self._declare(sink, self._pull_feed, self._manifests[self._pull_feed])
        dispatch.sink_to_source(self.machine, sink, message, self._context.now)
        self.pump.run()

    async def _plan(self, sink: MemberId, want: msg.Want) -> None:
        source = self._manifests.get(want.feed)
        if source is None or source.digest != want.source_digest:
            self.machine.dropped["want"] += 1
            return
        try:
            wanted = Manifest.decode(want.manifest) if want.manifest else source
            assignment = Assignment.decode(want.assignment) if want.assignment else Assignment.everything(source)
            plan = await plan_for(source, wanted, assignment, want.serial, want.binding)
        except Exception as caught:
            error = caught if isinstance(caught, TransportError) else InternalError(f"planning failed: {caught!r}")
            error.__cause__ = error.__cause__ or (caught if error is not caught else None)
            self.links.drop(sink, error)
            return
        self.plans[sink, want.feed] = plan
        if not want.feed.startswith("pull:"):
            self._followers.follows(sink, wanted)
        self.machine.on_plan_ready(sink, want.feed, want.binding, want.serial, want.source_digest, self._context.now)
        self.pump.run()

    # Actions.

    def _send(self, action: act.Send) -> None:
        if action.to == COORDINATOR:
            self._context.send(action.message)
        else:
            self.links.send(action.to, action.message)

    def _admitted(self, action: act.PutAdmittedAction) -> None:
        record = self.records[action.put]
        record.identity = action.identity
        record.names = dict(self.machine.targets)
        feed = str(action.identity.publication)
        known = self._manifests.get(feed)
        if known is None or known.digest != record.manifest.digest:
            # A new publication, or other tensors: said once, an unchanged round sends no metadata.
            self._manifests = {key: value for key, value in self._manifests.items() if key.startswith("pull:")}
            self._manifests[feed] = record.manifest
            self.machine.manifest_changed(feed)
            live = {feed, *(put.feed for put in self.machine.puts.values())}
            self.plans = {key: plan for key, plan in self.plans.items() if key[1] in live}
            for sink in self.links.links:
                self._declare(sink, feed, record.manifest)

    def _start_write(self, action: act.StartWrite) -> None:
        writing = Writing(self._context, self, action)
        self._writings[action.delivery] = writing
        writing.start(partial(self._written, action))

    def _written(self, action: act.StartWrite, error: TransportError | None, nbytes: int) -> None:
        record = self.records.get(action.put)
        if record is not None:
            record.nbytes[action.sink] = record.nbytes.get(action.sink, 0) + nbytes
        if error is None:
            self.machine.on_written(action.delivery, self._context.now)
        else:
            self.machine.on_write_failed(action.delivery, error, self._context.now)
        self.pump.run()
        self._writings.pop(action.delivery, None)

    def _send_part(self, action: act.SendPart) -> None:
        writing = self._writings[action.delivery]
        plan = writing.plan
        assert plan is not None
        rank = 0 if self.records[action.put].pin is not None else self.machine.rank
        feed = self.machine.puts[action.put].feed
        digests = writing.digests.astype("<u8").tobytes()
        part = msg.Part(action.identity, feed, rank, plan.binding, action.slot, action.generation, digests, plan.counts)
        self.links.send(action.sink, part)

    def _put_done(self, action: act.PutDone) -> None:
        record, context = self.records[action.put], self._context
        receipt = self._receipts.make(record, action, context.membership.excluded, context.now)
        if context.recorder is not None:
            text = ", ".join(f"{name} {outcome.name}" for name, outcome in receipt.outcomes.items())
            context.recorder.end(record.flight, nbytes_done=receipt.nbytes, outcome=text)
        if receipt.changed == 0 and not action.noop and record.manifest.nbytes:
            self._warn("unchanged", record.version, "no tensor differs from the version put before")
        bound = [sink for sink, link in self.machine.links.items() if link.binding]
        if bound and not action.noop and not any(outcome.name in _REACHED for outcome in receipt.outcomes.values()):
            why = "; ".join(f"{name} {told(outcome)}" for name, outcome in sorted(receipt.outcomes.items())[:5])
            self._warn("undelivered", record.version, f"it reached none of {len(bound)} bound generator(s): {why}")
        record.free_source()
        if record.done.cancelled():
            return
        if (error := undelivered(receipt, context.config)) is not None:
            record.done.set_exception(error)
        else:
            record.done.set_result(receipt)

    def _warn(self, kind: str, version: int, detail: str) -> None:
        self._emit(msg.EventNotice(kind, self._context.membership.profile.name, version, detail))

    def _put_error(self, action: act.PutError) -> None:
        record = self.records[action.put]
        fields = {"version": record.version, "nbytes_done": sum(record.nbytes.values()), "nbytes_expected": record.manifest.nbytes}
        if action.code == "withdrawn":
            error: TransportError = WithdrawnError(action.message, by=action.by)
        else:
            error = action.error or error_classes().get(action.code, TransportError)(action.message)
            if action.code == "deadline" and record.identity is None and self.coordinator_lost is not None:
                error.__cause__ = self.coordinator_lost
                error.hint = f"the coordinator is gone: {self.coordinator_lost.message}"
        if action.code == "stale":
            error.hint = "put the version again: it belongs to no publication now"
        error.with_fields(**fields)
        if self._context.recorder is not None:
            self._context.recorder.fail(record.flight, error)
        if not record.done.cancelled() and not record.done.done():
            record.done.set_exception(error)

    def _release(self, action: act.ReleasePut) -> None:
        record = self.records.pop(action.put, None)
        if record is not None:
            record.free_source()
            if record.snapshot is not None:
                record.snapshot.close()

    # Digests.

    def _check_open(self, version: int) -> None:
        if self._closed:
            raise ClosedError("the transport was closed before the put was under way", version=version)

    async def _take_snapshot(self, record: PutRecord) -> None:
        context, snapshot = self._context, Snapshot(record.manifest, self._context.budget)
        digesting, plan = context.config.verify != "off", snapshot.plan
        try:
            work = local.copy(context, record.local_region(), snapshot.region, plan.spans, plan.num_tensors, digest=digesting)
            await work
            self._check_open(record.version)
        except BaseException as error:
            snapshot.close()
            if context.recorder is not None and isinstance(error, TransportError):
                context.recorder.fail(record.flight, error)
            raise
        if digesting:
            record.own = work.digests()
        record.snapshot, record.memory, record.owner, record.weights = snapshot, snapshot.region, snapshot, None
        record.free_source()

    async def own_digests(self, record: PutRecord) -> Digests:
        """Digests per storage of the record's manifest, read now."""
        plan = make_plan(record.manifest, record.manifest, Assignment.everything(record.manifest))
        work = local.digest(self._context, record.local_region(), plan.spans, plan.num_tensors, "digest")
        await work
        return work.digests()

    def _compute_digest(self, action: act.ComputeDigest) -> None:
        record = self.records[action.put]
        if self._context.config.verify == "off":
            self._digested(record, None)
        elif record.own is not None:
            self._digested(record, record.own)
        else:
            self._context.spawn(self._read_digest(record))

    async def _read_digest(self, record: PutRecord) -> None:
        try:
            record.own = await self.own_digests(record)
        except TransportError as error:
            self.machine.on_digest(record.number, None, error, self._context.now)
            self.pump.run()
        else:
            self._digested(record, record.own)

    def _digested(self, record: PutRecord, own: Digests | None) -> None:
        digest = content_digest(self._name_weights(record.manifest), own) if own is not None else None
        self.machine.on_digest(record.number, digest, None, self._context.now)
        self.pump.run()

    def _name_weights(self, manifest: Manifest) -> Digests:
        found = self._weights.get(manifest.digest)
        if found is None:
            self._weights.clear()
            found = self._weights[manifest.digest] = name_weights(manifest)
        return found
