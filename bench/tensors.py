"""``python -m bench tensors``: what a tensor costs besides its bytes, as two fitted terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.figure import Figure
from bench.put import run_case
from bench.sides import Case
from bench.stats import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COUNTS = (1, 10, 100, 1_000, 10_000, 50_000, 100_000)


def run(total_mib: float, rounds: int, threads: int) -> Iterator[Figure]:
    """Puts of equal bytes in ever more tensors, as they are measured; then the fits."""
    total = int(total_mib * (1 << 20))
    first: list[float] = []
    later: list[float] = []
    for count in COUNTS:
        case = Case(f"{count} tensors", "shm", total, rounds + 1, {"copy_threads": threads}, num_tensors=count)
        outcome = run_case(case, None, case.weights())
        first.append(outcome.seconds[1])
        later.append(median(outcome.measured))
        spread = min(outcome.measured) * 1e3, max(outcome.measured) * 1e3
        name = f"{total_mib:g} MiB in {count} tensors"
        yield Figure(f"{name}, first put", first[-1] * 1e3, "ms", None, None, "", None, 1)
        yield Figure(f"{name}, later puts", later[-1] * 1e3, "ms", None, spread, "", None, len(outcome.measured))
    for kind, seconds in (("first put", first), ("later puts", later)):
        per_tensor_s, rest_s = fit(COUNTS, seconds)
        yield Figure(f"{kind}: cost of a tensor", per_tensor_s * 1e6, "us", None, None, "fitted", None, len(seconds))
        gbps = total / rest_s / 1e9 if rest_s > 0 else 0.0
        yield Figure(f"{kind}: bandwidth without it", gbps, "GB/s", None, None, "fitted", None, len(seconds))


def fit(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds a tensor, and seconds for the bytes: the line with the smallest relative errors."""
    weight = 1 / np.asarray(seconds)
    columns = np.stack([np.asarray(counts, float) * weight, weight], axis=1)
    (slope, rest), *_ = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)
    return float(slope), float(rest)
