"""``wtransport trace show`` over rings of processes that ran, run, and were killed."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Run
    from tests.helpers.scripts import Script


def _member(folder: str, member: str) -> None:
    import signal
    from pathlib import Path

    from wtransport.recorder.format import FlightBackend, FlightState, Op
    from wtransport.recorder.ring import FlightRecorder

    recorder = FlightRecorder.open(Path(folder), job="job", member=member, role="trainer", rank=0, incarnation="ab" * 16)
    for version in range(3):
        seq = recorder.begin(Op.PUT, version=version, term=1, publication=1, nbytes=1000)
        recorder.end(seq, nbytes_done=1000)
    failed = recorder.begin(Op.WRITE, backend=FlightBackend.TCP, peer="generator-0", version=3, nbytes=1000)
    recorder.end(failed, FlightState.FAILED, nbytes_done=400, code=5, outcome="the peer is gone")
    if member == "killed":
        recorder.begin(Op.DELIVER, peer="generator-1", version=3, nbytes=1000)
        print("ready")
        signal.pause()
    recorder.close()


@pytest.fixture
def job(start_python: Callable[..., Script], tmp_path: Path) -> Path:
    """Folder with the ring of a killed member and that of one that closed."""
    killed = start_python(_member, str(tmp_path), "killed")
    killed.line("ready")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    outcome = start_python(_member, str(tmp_path), "closed").wait()
    assert outcome.returncode == 0, outcome.stderr
    return tmp_path / "job"


def test_a_folder_is_shown_merged(wtransport: Run, job: Path) -> None:
    outcome = wtransport("trace", "show", job)
    assert outcome.returncode == 0, outcome.stderr
    assert "killed in flight, " in outcome.stdout
    assert "the process died without closing it" in outcome.stdout
    assert "closed in good order" in outcome.stdout
    assert "the peer is gone" in outcome.stdout
    assert "400 B/1000 B" in outcome.stdout
    assert outcome.stdout.index(" killed ") < outcome.stdout.index(" closed ")


def test_json_is_one_document(wtransport: Run, job: Path) -> None:
    outcome = wtransport("trace", "show", job.parent, "--json")
    found = json.loads(outcome.stdout)
    assert outcome.returncode == 0
    assert len(found["records"]) == 9
    assert {ring["process"] for ring in found["rings"]} == {"killed", "closed"}
    (cut,) = [record for record in found["records"] if record["op"] == "deliver"]
    assert (cut["state"], cut["process"], cut["peer"], cut["version"]) == ("started", "killed", "generator-1", 3)


def test_one_file_and_its_last_operations(wtransport: Run, job: Path) -> None:
    (path,) = job.glob("closed-*.ring")
    found = json.loads(wtransport("trace", "show", path, "--last", 2, "--json").stdout)
    assert [(record["op"], record["version"]) for record in found["records"]] == [("put", 2), ("write", 3)]


def test_choice_by_operation_and_failure(wtransport: Run, job: Path) -> None:
    found = json.loads(wtransport("trace", "show", job, "--op", "put", "--op", "deliver", "--json").stdout)
    assert [record["op"] for record in found["records"]] == ["put", "put", "put", "deliver", "put", "put", "put"]
    found = json.loads(wtransport("trace", "show", job, "--failed", "--json").stdout)
    assert [record["op"] for record in found["records"]] == ["write", "deliver", "write"]


@pytest.mark.parametrize(
    "args",
    [
        ("trace", "show"),
        ("trace", "show", "/no/such/folder"),
        ("trace", "show", ".", "--op", "dance"),
        ("trace", "show", ".", "--last", "0"),
    ],
)
def test_bad_usage_is_exit_code_2(wtransport: Run, args: tuple[str, ...]) -> None:
    assert wtransport(*args).returncode == 2


def test_nothing_found_is_exit_code_1(wtransport: Run, job: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = wtransport("trace", "show", tmp_path / "empty")
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert "nothing found" in outcome.stderr
    assert wtransport("trace", "show", job, "--op", "snapshot").returncode == 1
    outcome = wtransport("trace", "show", tmp_path / "empty", "--json")
    assert (outcome.returncode, json.loads(outcome.stdout)["records"]) == (1, [])


def test_what_is_no_ring_is_named_and_skipped(wtransport: Run, job: Path) -> None:
    (job / "bad.ring").write_bytes(b"nothing")
    outcome = wtransport("trace", "show", job)
    assert outcome.returncode == 0
    assert "bad.ring is not a flight ring" in outcome.stderr
    assert wtransport("trace", "show", job / "bad.ring").returncode == 1
