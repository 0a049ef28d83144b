"""The benchmark runs as its users call it; its figures are nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.tensors import fit

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_small_put_is_measured_and_missed_targets_are_no_failure() -> None:
    command = [sys.executable, "-m", "bench", "put", "--gib", "0.01", "--rounds", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    figures = {item["name"]: item for item in json.loads(done.stdout)}
    assert figures["shm put, verify=full, 0.01 GiB"]["met"] is None
    assert figures["shm put, verify=full, 0.01 GiB, against its passes"]["target"] == ">= 0.9 of a copy and two reads"
    assert all(item["value"] > 0 for name, item in figures.items() if "peak memory" not in name)


def test_the_cost_of_a_tensor_is_told_from_that_of_the_bytes() -> None:
    counts = (1, 10, 1000, 100_000)
    per_tensor_s, rest_s = fit(counts, [2e-6 * count + 5e-3 for count in counts])
    assert per_tensor_s == pytest.approx(2e-6)
    assert rest_s == pytest.approx(5e-3)
