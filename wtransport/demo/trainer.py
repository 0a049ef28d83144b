"""The trainer: learns from the samples that come, puts every version."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import torch

import wtransport
from wtransport.config import TransportConfig
from wtransport.demo import reports
from wtransport.demo.batch import Batch
from wtransport.demo.checksum import checksum
from wtransport.demo.inbox import Inbox
from wtransport.demo.learner import Learner
from wtransport.demo.policy import Policy
from wtransport.demo.reports import Delivery, Finished, Started, Stepped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from wtransport.demo.spec import Spec


async def main(report: Connection, spec: Spec, generators: Sequence[Connection]) -> None:
    """Train for ``spec.seconds``, then put a last version and wait until all generators hold it.

    Args:
        report: To the process that shows the run.
        spec: The run.
        generators: One duplex pipe each. Batches come in; for each one taken an empty message goes
            out, and in the end the number of the last version.
    """
    torch.manual_seed(spec.seed)
    policy = Policy(spec.size)
    async with wtransport.connect(spec.url, role="trainer", backend=spec.backend, config=TransportConfig.from_env()) as transport:
        reports.send(
            report,
            Started(
                num_parameters=policy.num_parameters,
                nbytes=sum(tensor.nbytes for tensor in policy.state_dict().values()),
            ),
        )
        inbox = Inbox(generators)
        try:
            trainer = _Trainer(spec, policy, transport, inbox, report)
            version = await trainer.run()
        finally:
            inbox.close()
        for generator in generators:
            generator.send_bytes(str(version).encode())
        receipt = await transport.put(policy.state_dict(), version=version)
        reports.send(report, _delivery(receipt))
        reports.send(report, Finished(version, checksum(policy.state_dict())))
        await _until_closed(generators)


class _Trainer:
    def __init__(
        self,
        spec: Spec,
        policy: Policy,
        transport: wtransport.Transport,
        inbox: Inbox,
        report: Connection,
    ) -> None:
        self._seconds = spec.seconds
        self._policy = policy
        self._learner = Learner(policy, spec.size.learning_rate)
        self._transport = transport
        self._inbox = inbox
        self._report = report
        self._checksums: dict[int, int] = {}

    async def run(self) -> int:
        """Train until the time is over; return the number of the next version."""
        version = 1
        began: float | None = None
        async with asyncio.TaskGroup() as receipts:
            handle = self._put(version, receipts)
            while True:
                batch = await self._next_batch()
                began = began or time.monotonic()
                progress = self._learner.learn(batch)
                staleness = version - batch.version
                # The snapshot is taken while the gradient is: only a step must wait for it.
                await handle.source_free
                elapsed_s = time.monotonic() - began
                self._learner.step(elapsed_s / self._seconds)
                version += 1
                reports.send(
                    self._report,
                    Stepped(
                        version=version,
                        reward=progress.reward,
                        exact=progress.exact,
                        entropy=progress.entropy,
                        staleness=staleness,
                        samples=len(batch.prompts),
                        elapsed_s=elapsed_s,
                        intact=self._checksums[batch.version] == batch.checksum,
                    ),
                )
                if elapsed_s >= self._seconds:
                    return version
                handle = self._put(version, receipts)

    async def _next_batch(self) -> Batch:
        generator, packed = await self._inbox.next()
        generator.send_bytes(b"")  # it may draw the next one
        return Batch.unpack(packed)

    def _put(self, version: int, receipts: asyncio.TaskGroup) -> wtransport.PutHandle:
        weights = self._policy.state_dict()
        self._checksums[version] = checksum(weights)
        handle = self._transport.put_nowait(weights, version=version, snapshot=True)
        receipts.create_task(self._settle(handle))
        return handle

    async def _settle(self, handle: wtransport.PutHandle) -> None:
        reports.send(self._report, _delivery(await handle))


def _delivery(receipt: wtransport.Receipt) -> Delivery:
    return Delivery(
        version=receipt.version,
        nbytes=receipt.nbytes,
        seconds=receipt.seconds,
        outcomes={name: outcome.name for name, outcome in receipt.outcomes.items()},
    )


async def _until_closed(generators: Sequence[Connection]) -> None:
    """Stay until every generator has left: a last version that one still pulls is served from here."""
    inbox = Inbox(generators)
    try:
        while True:
            await inbox.next()
    except EOFError:
        return
    finally:
        inbox.close()
