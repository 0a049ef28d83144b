"""The two processes of a put benchmark: a generator that follows, and the trainer that is measured."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import wtransport
from bench import workload
from bench.stats import Lag, peak_rss_nbytes, settle_garbage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True)
class Case:
    """One benchmark case.

    Attributes:
        total_nbytes: Bytes of the weights; 0 is one tensor of 4 KiB.
        rounds: Versions put.
        bind_every: The generator binds anew before each so many versions; 0 binds once.
        settings: ``TransportConfig`` fields.
        num_tensors: Tensors of equal size instead of a model's; 0 for a model's.
        lag: Loop lag is measured on both sides; its ticks take the copies' cores, so that such puts are not timed.
    """

    name: str
    backend: str
    total_nbytes: int
    rounds: int
    settings: dict[str, Any] = field(default_factory=dict)
    bind_every: int = 0
    lag: bool = False
    num_tensors: int = 0

    def weights(self) -> dict[str, torch.Tensor]:
        """The trainer's tensors."""
        if self.num_tensors:
            return workload.equal(self.total_nbytes, self.num_tensors)
        return workload.weights(self.total_nbytes) if self.total_nbytes else {"w": torch.zeros(2048, dtype=torch.bfloat16)}

    def wanted(self) -> dict[str, torch.Tensor]:
        """The generator's."""
        if self.num_tensors:
            return workload.equal(self.total_nbytes, self.num_tensors)
        return workload.wanted(self.total_nbytes) if self.total_nbytes else {"w": torch.zeros(2048, dtype=torch.bfloat16)}


def generator(url: str, case: Case, control: Connection) -> None:
    """Follow until the last round, binding anew whenever told to; then report checksums, yield times, loop lag and peak memory."""
    torch.set_num_threads(1)
    asyncio.run(_follow(url, case, control))


async def _follow(url: str, case: Case, control: Connection) -> None:
    config = wtransport.TransportConfig(**case.settings)
    async with wtransport.connect(url, role="generator", name="gen-0", backend=case.backend, config=config) as transport:
        settle_garbage()
        before = peak_rss_nbytes()
        control.send(await transport.bind(case.wanted()))
        obeying = asyncio.create_task(_obey(transport, case, control))
        yields: dict[int, int] = {}
        sums: list[int] = []
        peak = 0
        lag = Lag()
        async with lag if case.lag else contextlib.nullcontext():
            async for update in transport.updates():
                yields[update.version] = time.perf_counter_ns()
                with update:
                    if update.version == case.rounds:
                        # Before the sums: torch makes large temporaries for them.
                        peak = peak_rss_nbytes() - before
                        sums = workload.checksums(update.tensors)
                if update.version == case.rounds:
                    break
        control.send((sums, yields, lag.p999_ms, peak))
        await obeying


async def _obey(transport: wtransport.Transport, case: Case, control: Connection) -> None:
    """Bind anew when the trainer says so, until it says that this was all."""
    while await asyncio.to_thread(control.recv) == "bind":
        control.send(await transport.bind(case.wanted()))
