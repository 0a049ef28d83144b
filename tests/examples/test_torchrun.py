"""The elastic example under the real torchrun: a rank is killed, all are started anew, and nothing is left when it has ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_elastic.py"
# Above the example's own deadline: it is to say what it waits for.
_PATIENCE_S = 240.0
_SETTLE_S = 10.0


def marked(marker: str) -> set[int]:
    """Processes that were started with *marker* in their environment, whoever their parent is now."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
    return found - {os.getpid()}


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE_S + 3 * _SETTLE_S)
def test_the_job_goes_on_after_torchrun_restarted_it(tmp_path: Path) -> None:
    rings, scratch = tmp_path / "rings", tmp_path / "scratch"
    scratch.mkdir()
    shared = set(os.listdir("/dev/shm"))
    env = os.environ | {"WTRANSPORT_RECORDER_DIR": str(rings), "TMPDIR": str(scratch)}
    command = [sys.executable, str(EXAMPLE), "tcp://127.0.0.1:0"]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, errors = process.communicate(timeout=_PATIENCE_S)
        give_up = time.monotonic() + _SETTLE_S
        while (left := marked(str(rings))) and time.monotonic() < give_up:
            time.sleep(0.05)
    finally:
        for pid in marked(str(rings)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=_SETTLE_S)
    assert process.returncode == 0, printed + errors
    assert "Traceback" not in errors, errors
    assert "trainer 1: kills itself before its part of version 8" in printed
    assert "trainer 1: attempt 1 goes on from step 5; the job holds version 7" in printed
    summary = printed.splitlines()[-1]
    assert re.match(r"VERIFIED: resumed from step 5 with version 7 out, put again from version 8 ", summary), printed
    assert " to 12, never back, ends with the trainers' weights" in summary
    alone = re.search(r"(\d+) of them while trainers were missing", summary)
    assert alone is not None, summary
    assert int(alone[1]) > 0
    assert left == set()
    assert set(os.listdir("/dev/shm")) <= shared
    assert list(scratch.iterdir()) == []
