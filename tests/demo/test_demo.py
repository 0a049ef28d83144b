"""The demo learns, and everything it moved is what was put."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from wtransport.demo.progress import Progress
from wtransport.demo.reports import Stepped
from wtransport.demo.view import Lines

if TYPE_CHECKING:
    from pathlib import Path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wtransport", "demo", *arguments]


@pytest.mark.timeout(240)
def test_the_reward_rises_and_every_version_is_verified(tmp_path: Path) -> None:
    env = os.environ | {"WTRANSPORT_RECORDER_DIR": str(tmp_path / "rings")}
    done = subprocess.run(
        command("--seconds", "40", "--json"), env=env, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []


def test_a_line_that_says_nothing_new_is_not_printed_again() -> None:
    """While the processes end, time goes on and the run does not."""
    console = Console(file=io.StringIO(), width=200)
    lines, progress = Lines(console), Progress(("gen",), 1.0)
    for step in (1, 2):
        progress.add(Stepped(step, 0.5, 0.5, 1.0, 0, 8, 0.5 * step, True))
        for _ in range(3):
            lines._next_s = 0.0  # a second has passed
            lines.update(progress)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue().splitlines()
    assert [text.split("reward")[0].split() for text in printed] == [["0.5", "s", "step", "1"], ["1.0", "s", "step", "2"]]


def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    env = os.environ | {"WTRANSPORT_RECORDER_DIR": str(tmp_path / "rings")}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(command("--seconds", "60"), env=env, start_new_session=True, **streams)
    assert running.stdout is not None
    with running:
        for line in running.stdout:
            if b"step" in line:
                break
        os.killpg(running.pid, signal.SIGINT)
        running.stdout.read()
        assert running.wait(30) == 130
    # The tracker of multiprocessing's own ends by itself, a moment after its last user.
    give_up = time.monotonic() + 10
    while members(running.pid) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert members(running.pid) == []


def members(group: int) -> list[str]:
    """Command lines of the processes of a process group."""
    listed = subprocess.run(["pgrep", "-a", "-g", str(group)], capture_output=True, text=True, check=False)
    return listed.stdout.splitlines()
