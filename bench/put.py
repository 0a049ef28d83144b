"""``python -m bench put``: how fast a put is, against the best the machine does in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing as mp
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import wtransport
from bench import workload
from bench.figure import Figure
from bench.limits import RawCopy, RawSockets, round_trip_us
from bench.sides import Case, generator
from bench.stats import Lag, median, peak_rss_nbytes, settle_garbage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

_WARMUP = 1
# Puts whose costs are measured, and puts to each binding where first puts are.
_COSTED = 8
_BIND_EVERY = 3
# verify="full" reads twice more than it copies: it is held against those passes, which no put of it can be faster than.
_PASSES_TARGET = 0.90
# Between a bind and the put after it: training goes on meanwhile, in any job.
_TRAINING_S = 1.0

Weights = dict[str, torch.Tensor]


@dataclass
class Outcome:
    """What one case measured.

    Attributes:
        seconds: Of each put, by version.
        limits: Of each version's limit, in every way it was tried.
    """

    seconds: dict[int, float]
    limits: list[tuple[float, ...]]
    lag_trainer_ms: float
    lag_generator_ms: float
    peak_sink_nbytes: int
    peak_source_nbytes: int
    nbytes: int
    latencies_us: list[float]

    @property
    def measured(self) -> list[float]:
        """Seconds of the puts after the first ones."""
        return [seconds for version, seconds in self.seconds.items() if version > _WARMUP]


def run_case(case: Case, limit: RawCopy | RawSockets | None, weights: Weights) -> Outcome:
    """Run one case between two processes; raises if a byte differs."""
    url = f"unix://@wtransport-bench-{secrets.token_hex(8)}"
    control, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=generator, args=(url, case, theirs))
    process.start()
    settle_garbage()
    try:
        return asyncio.run(_measure(url, case, limit, weights, control))
    finally:
        process.join(20)
        process.kill()


async def _measure(url: str, case: Case, limit: RawCopy | RawSockets | None, weights: Weights, control: Connection) -> Outcome:
    config = wtransport.TransportConfig(**case.settings)
    async with wtransport.connect(url, role="trainer", backend=case.backend, config=config) as transport:
        await asyncio.to_thread(control.recv)
        await _linked(transport)
        rss = peak_rss_nbytes()
        seconds: dict[int, float] = {}
        limits: list[tuple[float, ...]] = []
        starts: dict[int, int] = {}
        lag = Lag()
        for version in range(1, case.rounds + 1):
            workload.mark(weights, version)
            if case.bind_every and version > 1 and version % case.bind_every == 1:
                control.send("bind")
                await asyncio.to_thread(control.recv)
                await asyncio.sleep(_TRAINING_S)
            if limit is not None:
                limits.append(await asyncio.to_thread(limit.once))
            async with lag if case.lag else contextlib.nullcontext():  # neither the limit's copies nor the marks are the put's doing
                starts[version] = time.perf_counter_ns()
                receipt = await transport.put(weights, version)
                seconds[version] = (time.perf_counter_ns() - starts[version]) / 1e9
                await _settled(case)
            if receipt.delivered != ("gen-0",):
                raise RuntimeError(f"{case.name}: version {version} was not delivered: {receipt.outcomes}")
        sums, yields, lag_generator, peak_sink = await asyncio.to_thread(control.recv)
        if sums != workload.checksums(weights):
            raise RuntimeError(f"{case.name}: the generator's bytes differ")
        peak_source = peak_rss_nbytes() - rss
        control.send("end")
        latencies = [(yields[version] - start) / 1e3 for version, start in starts.items() if version in yields and version > _WARMUP]
        nbytes = workload.nbytes(weights)
        return Outcome(seconds, limits[_WARMUP:], lag.p999_ms, lag_generator, peak_sink, peak_source, nbytes, latencies)


async def _bare_lag_ms(copy: RawCopy) -> float:
    """What the system alone keeps an event loop waiting while as many threads as there are cores copy."""
    async with Lag() as lag:
        for _ in range(_COSTED):
            await asyncio.to_thread(copy.streaming)
            await asyncio.sleep(0.05)
    return lag.p999_ms


async def _linked(transport: wtransport.Transport) -> None:
    while not await transport.describe():  # noqa: ASYNC110 - there is no event for a data link
        await asyncio.sleep(0.01)


async def _settled(case: Case) -> None:
    # The generator releases its lease, and credit for the next version comes, before the next put starts.
    await asyncio.sleep(0.05 if case.total_nbytes else 0.002)


def run(total_gib: float, rounds: int, threads: int) -> Iterator[Figure]:
    """Every figure of the report for one size, as it is measured."""
    total = int(total_gib * (1 << 30))
    weights = workload.weights(total)
    size = f"{total_gib:g} GiB"
    copy = RawCopy(weights, threads)
    for verify, target in (("off", 0.95), ("wire", 0.80), ("full", None)):
        case = Case(f"shm put, verify={verify}, {size}", "shm", total, rounds + _WARMUP, {"copy_threads": threads, "verify": verify})
        outcome = run_case(case, copy, weights)
        yield _against(case.name, outcome, target, f"raw copy, {threads} threads")
        if verify == "full":
            yield _against_passes(outcome, copy, size)
    default = wtransport.TransportConfig().copy_threads
    case = Case(f"shm put, verify=wire, {size}, default copy_threads={default}", "shm", total, rounds + _WARMUP)
    yield _against(case.name, run_case(case, copy, weights), None, f"raw copy, {threads} threads")
    bare = asyncio.run(_bare_lag_ms(copy))
    yield Figure(f"loop lag beside raw copies alone, p99.9, {size}", bare, "ms", None, None, "", None, _COSTED)
    copy.close()
    # The limit's own copies would be in the way of the generator's event loop: costs are measured without them.
    case = Case("costs", "shm", total, _COSTED, {"copy_threads": threads}, lag=True)
    yield from _costs(run_case(case, None, weights), size, total)
    case = Case("first puts", "shm", total, _BIND_EVERY * rounds, {"copy_threads": threads}, _BIND_EVERY)
    yield from _first(run_case(case, None, weights), size)
    for streams in (2, 4):
        sockets = RawSockets(workload.nbytes(weights), streams)
        for verify in ("off", "wire"):
            settings = {"streams": streams, "copy_threads": threads, "verify": verify}
            case = Case(f"tcp put, {streams} streams, verify={verify}, {size}", "tcp", total, rounds + _WARMUP, settings)
            yield _against(case.name, run_case(case, sockets, weights), 0.95, f"raw sockets, {streams} streams")
        sockets.close()


def latency(rounds: int) -> Iterator[Figure]:
    """4 KiB over shared memory, from ``put`` to ``updates()`` yielding in the other process, beside a bare TCP round trip."""
    case = Case("4 KiB over shm", "shm", 0, rounds)
    outcome = run_case(case, None, case.weights())
    bare = round_trip_us()
    yielded = median(outcome.latencies_us)
    yield Figure("4 KiB over shm: put to yield, p50", yielded, "us", bare / yielded, None, "", None, len(outcome.latencies_us))
    yield Figure("4 KiB over shm: put to receipt, p50", median(outcome.measured) * 1e6, "us", None, None, "", None, rounds)
    yield Figure("4 KiB bare loopback TCP round trip, p50", bare, "us", 1.0, None, "", None, 2000)


def _against(name: str, outcome: Outcome, target: float | None, limit: str) -> Figure:
    """The put against the better of the ways in which its limit was tried, each time beside it."""
    best = min(zip(*outcome.limits, strict=True), key=lambda tries: median(list(tries)))
    ratios = [bound / ours for bound, ours in zip(best, outcome.measured, strict=True)]
    ratio = median(ratios)
    gbps = outcome.nbytes / median(outcome.measured) / 1e9
    wanted = f">= {target} of {limit}" if target is not None else f"of {limit}"
    return Figure(name, gbps, "GB/s", ratio, (min(ratios), max(ratios)), wanted, None if target is None else ratio >= target, len(ratios))


def _against_passes(outcome: Outcome, copy: RawCopy, size: str) -> Figure:
    """``full`` reads the source once more, and the destination: against a raw copy and two reading passes, one after the other."""
    passes = min(median(list(tries)) for tries in zip(*outcome.limits, strict=True)) + 2 * median([copy.reading() for _ in outcome.limits])
    taken = median(outcome.measured)
    name = f"shm put, verify=full, {size}, against its passes"
    ratio, target = passes / taken, f">= {_PASSES_TARGET} of a copy and two reads"
    return Figure(name, outcome.nbytes / taken / 1e9, "GB/s", ratio, None, target, ratio >= _PASSES_TARGET, len(outcome.limits))


def _first(outcome: Outcome, size: str) -> list[Figure]:
    """First puts after a bind against those that follow them; the job's very first also exchanges and plans the manifests."""
    seconds = list(outcome.seconds.values())
    later = median([taken for index, taken in enumerate(seconds) if index % _BIND_EVERY])
    ratios = [later / taken for taken in seconds[_BIND_EVERY::_BIND_EVERY]]
    ratio = median(ratios)
    spread = min(ratios), max(ratios)
    value = later / ratio * 1e3
    target = ">= 0.8 of later puts"
    return [
        Figure(f"first put of a job, {size}", seconds[0] * 1e3, "ms", later / seconds[0], None, "of later puts", None, 1),
        Figure(f"first put after a bind, {size}", value, "ms", ratio, spread, target, ratio >= 0.8, len(ratios)),
    ]


def _costs(outcome: Outcome, size: str, total: int) -> list[Figure]:
    mib = 1 << 20
    rows = [
        ("loop lag in the trainer, p99.9", outcome.lag_trainer_ms, 5.0, "ms"),
        ("loop lag in the generator, p99.9", outcome.lag_generator_ms, 5.0, "ms"),
        ("peak memory added at the sink", outcome.peak_sink_nbytes / mib, (2 * total + 128 * mib) / mib, "MiB"),
        ("peak memory added at the source", outcome.peak_source_nbytes / mib, 128.0, "MiB"),
    ]
    count = len(outcome.seconds)
    return [Figure(f"{name}, {size}", value, unit, None, None, f"<= {most:g}", value <= most, count) for name, value, most, unit in rows]
