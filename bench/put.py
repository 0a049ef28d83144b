"""``python -m bench put``: how fast a put is, against the best the machine does in the same run."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import secrets
import time
from dataclasses import asdict, dataclass

import wtransport
from bench import workload
from bench.limits import RawCopy, RawSockets, round_trip_us
from bench.sides import Case, generator
from bench.stats import Lag, median, peak_rss_nbytes

_WARMUP = 1


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    Attributes:
        ratio: The limit's seconds over ours (1 is the limit itself), median of the rounds; None where only a value is given.
        target: What the ratio, or the value, is to reach.
    """

    name: str
    value: float
    unit: str
    ratio: float | None
    spread: tuple[float, float] | None
    target: str
    met: bool | None
    rounds: int


@dataclass
class Outcome:
    """What one case measured."""

    first_s: float
    seconds: list[float]
    limits: list[float]
    lag_trainer_ms: float
    lag_generator_ms: float
    peak_sink_nbytes: int
    peak_source_nbytes: int
    nbytes: int
    latencies_us: list[float]


def run_case(case: Case, limit: RawCopy | RawSockets | None, weights: dict[str, object]) -> Outcome:
    """Run one case between two processes; raises if a byte differs."""
    url = f"unix://@wtransport-bench-{secrets.token_hex(8)}"
    control, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=generator, args=(url, case, theirs))
    process.start()
    try:
        return asyncio.run(_measure(url, case, limit, weights, control))
    finally:
        process.join(20)
        process.kill()


async def _measure(url: str, case: Case, limit: RawCopy | RawSockets | None, weights: dict, control: object) -> Outcome:  # type: ignore[type-arg]
    config = wtransport.TransportConfig(**case.settings)
    async with wtransport.connect(url, role="trainer", backend=case.backend, config=config) as transport:
        await asyncio.to_thread(control.recv)  # type: ignore[attr-defined]
        await _linked(transport)
        rss = peak_rss_nbytes()
        seconds, limits, starts = [], [], {}
        first_s = 0.0
        async with Lag() as lag:
            for version in range(1, case.rounds + 1):
                workload.mark(weights, version)
                if limit is not None:
                    limits.append(await asyncio.to_thread(limit.best if isinstance(limit, RawCopy) else limit.once))
                starts[version] = time.perf_counter_ns()
                receipt = await transport.put(weights, version)
                elapsed = (time.perf_counter_ns() - starts[version]) / 1e9
                if receipt.delivered != ("gen-0",):
                    raise RuntimeError(f"{case.name}: version {version} was not delivered: {receipt.outcomes}")
                if version == 1:
                    first_s = elapsed
                if version > _WARMUP:
                    seconds.append(elapsed)
                await _settled(case)
        _, sums, yields, lag_generator, peak_sink = await asyncio.to_thread(control.recv)  # type: ignore[attr-defined]
        if sums != workload.checksums(weights):
            raise RuntimeError(f"{case.name}: the generator's bytes differ")
        peak_source = peak_rss_nbytes() - rss
        control.send("end")  # type: ignore[attr-defined]
        latencies = [(yields[version] - start) / 1e3 for version, start in starts.items() if version in yields and version > _WARMUP]
        return Outcome(
            first_s, seconds, limits[_WARMUP:], lag.p999_ms, lag_generator, peak_sink, peak_source, workload.nbytes(weights), latencies
        )


async def _linked(transport: wtransport.Transport) -> None:
    while not await transport.describe():  # noqa: ASYNC110 - there is no event for a data link
        await asyncio.sleep(0.01)


async def _settled(case: Case) -> None:
    # The generator releases its lease, and credit for the next version comes, before the next put starts.
    await asyncio.sleep(0.05 if case.total_nbytes else 0.002)


def run(total_gib: float, rounds: int, threads: int) -> list[Figure]:
    """Every figure of the report for one size."""
    figures: list[Figure] = []
    total = int(total_gib * (1 << 30))
    weights = workload.weights(total)
    size = f"{total_gib:g} GiB"
    copy = RawCopy(weights, threads)
    for verify, target in (("off", 0.95), ("wire", 0.80), ("full", 0.45)):
        case = Case(f"shm put, verify={verify}, {size}", "shm", total, rounds + _WARMUP, {"copy_threads": threads, "verify": verify})
        outcome = run_case(case, copy, weights)  # type: ignore[arg-type]
        figures.append(_against(case.name, outcome, target, f"raw copy, {threads} threads"))
        if verify == "wire":
            ratio = median(outcome.seconds) / outcome.first_s
            figures.append(Figure(f"first put after bind, {size}", outcome.first_s * 1e3, "ms", ratio, None, ">= 0.8", ratio >= 0.8, 1))
            figures += _costs(outcome, size, total)
    default = wtransport.TransportConfig().copy_threads
    case = Case(f"shm put, verify=wire, {size}, default copy_threads={default}", "shm", total, rounds + _WARMUP)
    figures.append(_against(case.name, run_case(case, copy, weights), None, f"raw copy, {threads} threads"))  # type: ignore[arg-type]
    copy.close()
    for streams in (2, 4):
        sockets = RawSockets(workload.nbytes(weights), streams)
        case = Case(f"tcp put, {streams} streams, {size}", "tcp", total, rounds + _WARMUP, {"streams": streams, "copy_threads": threads})
        figures.append(_against(case.name, run_case(case, sockets, weights), 0.95, f"raw sockets, {streams} streams"))  # type: ignore[arg-type]
        sockets.close()
    return figures


def latency(rounds: int) -> list[Figure]:
    """4 KiB over shared memory, from ``put`` to ``updates()`` yielding in the other process, beside a bare TCP round trip."""
    case = Case("4 KiB over shm", "shm", 0, rounds)
    outcome = run_case(case, None, case.weights())  # type: ignore[arg-type]
    bare = round_trip_us()
    yielded = median(outcome.latencies_us)
    figures = [Figure("4 KiB over shm: put to yield, p50", yielded, "us", bare / yielded, None, "", None, len(outcome.latencies_us))]
    figures.append(Figure("4 KiB over shm: put to receipt, p50", median(outcome.seconds) * 1e6, "us", None, None, "", None, rounds))
    figures.append(Figure("4 KiB bare loopback TCP round trip, p50", bare, "us", 1.0, None, "", None, 2000))
    return figures


def as_json(figures: list[Figure]) -> list[dict[str, object]]:
    """Plain data of the report."""
    return [asdict(figure) for figure in figures]


def _against(name: str, outcome: Outcome, target: float | None, limit: str) -> Figure:
    ratios = [bound / ours for bound, ours in zip(outcome.limits, outcome.seconds, strict=True)]
    ratio = median(ratios)
    gbps = outcome.nbytes / median(outcome.seconds) / 1e9
    wanted = f">= {target} of {limit}" if target is not None else f"of {limit}"
    return Figure(name, gbps, "GB/s", ratio, (min(ratios), max(ratios)), wanted, None if target is None else ratio >= target, len(ratios))


def _costs(outcome: Outcome, size: str, total: int) -> list[Figure]:
    mib = 1 << 20
    sink_limit, source_limit = 2 * total + 128 * mib, 128 * mib
    sink, source = outcome.peak_sink_nbytes, outcome.peak_source_nbytes
    return [
        Figure(f"loop lag in the trainer, p99.9, {size}", outcome.lag_trainer_ms, "ms", None, None, "<= 5", outcome.lag_trainer_ms <= 5, 0),
        Figure(
            f"loop lag in the generator, p99.9, {size}",
            outcome.lag_generator_ms,
            "ms",
            None,
            None,
            "<= 5",
            outcome.lag_generator_ms <= 5,
            0,
        ),
        Figure(
            f"peak memory added at the sink, {size}", sink / mib, "MiB", None, None, f"<= {sink_limit / mib:.0f}", sink <= sink_limit, 1
        ),
        Figure(f"peak memory added at the source, {size}", source / mib, "MiB", None, None, "<= 128", source <= source_limit, 1),
    ]
