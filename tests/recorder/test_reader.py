"""Rings of running and killed processes, and files that only look like rings."""

from __future__ import annotations

import os
import signal
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wtransport.recorder.format import HEADER_NBYTES, RECORD, RECORD_NBYTES, FlightBackend, FlightState, Op
from wtransport.recorder.reader import RingFormatError, read_header, read_ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Script
    from wtransport.recorder.ring import FlightRecorder

    Open = Callable[..., FlightRecorder]


def _member(folder: str, mode: str) -> None:
    import signal
    from pathlib import Path

    from wtransport.recorder.format import FlightBackend, Op
    from wtransport.recorder.ring import FlightRecorder

    recorder = FlightRecorder.open(
        Path(folder), job="job", member="trainer-0", role="trainer", rank=0, incarnation="ab" * 16, num_records=16
    )
    done = recorder.begin(Op.WRITE, version=1, nbytes=10)
    recorder.end(done, nbytes_done=10)
    recorder.begin(Op.DELIVER, backend=FlightBackend.SHM, peer="generator-0", version=2, nbytes=1 << 30)
    print(recorder.path)
    count = 0
    while mode == "busy":
        text = f"n{count % 50}"
        seq = recorder.begin(Op.PUT, version=count, nbytes=count, peer=text, detail=text)
        recorder.end(seq, nbytes_done=count, outcome=text)
        count += 1
    if mode == "wait":
        signal.pause()


def _ring_of(script: Script) -> Path:
    from pathlib import Path

    return Path(script.line("/").strip())


def test_a_killed_process_leaves_what_it_was_doing(start_python: Callable[..., Script], tmp_path: Path) -> None:
    script = start_python(_member, str(tmp_path), "wait")
    path = _ring_of(script)
    assert read_header(path).status == "running"
    script.send_signal(signal.SIGKILL)
    script.wait()
    ring = read_ring(path)
    assert ring.header.status == "killed"
    assert ring.header.killed
    done, cut = ring.records
    assert (done.state, done.nbytes_done) == (FlightState.DONE, 10)
    assert (cut.op, cut.state, cut.backend, cut.peer, cut.version) == (
        Op.DELIVER,
        FlightState.STARTED,
        FlightBackend.SHM,
        "generator-0",
        2,
    )
    assert ring.num_torn == 0


@pytest.mark.parametrize("round_number", range(5))
def test_a_process_killed_while_it_records_leaves_a_readable_ring(
    start_python: Callable[..., Script], tmp_path: Path, round_number: int
) -> None:
    script = start_python(_member, str(tmp_path), "busy")
    path = _ring_of(script)
    while read_header(path).next_seq < 1000 * (round_number + 1):
        pass
    script.send_signal(signal.SIGKILL)
    script.wait()
    ring = read_ring(path)
    assert ring.header.killed
    assert ring.num_torn <= 1
    assert len(ring.records) + ring.num_torn == 16
    _assert_consistent(ring.records)


def test_a_process_that_ends_without_closing_did_not_end_in_good_order(start_python: Callable[..., Script], tmp_path: Path) -> None:
    script = start_python(_member, str(tmp_path), "end")
    path = _ring_of(script)
    script.wait()
    assert read_header(path).status == "killed"


def test_a_stopped_process_still_runs(start_python: Callable[..., Script], tmp_path: Path) -> None:
    script = start_python(_member, str(tmp_path), "wait")
    path = _ring_of(script)
    script.send_signal(signal.SIGSTOP)
    assert read_header(path).alive is True


def test_a_live_ring_shows_no_mixture_of_records(start_python: Callable[..., Script], tmp_path: Path) -> None:
    path = _ring_of(start_python(_member, str(tmp_path), "busy"))
    seen = 0
    while seen < 300:
        ring = read_ring(path)
        assert [record.t_start_ns for record in ring.records] == sorted(record.t_start_ns for record in ring.records)
        seen += _assert_consistent(ring.records)


def _assert_consistent(records: list[Any]) -> int:
    """Every put says one number in all its fields; return how many there were."""
    puts = [record for record in records if record.op is Op.PUT]
    for record in puts:
        text = f"n{record.version % 50}"
        assert (record.nbytes_total, record.peer, record.detail) == (record.version, text, text)
        assert record.seq == record.version + 2
        if record.state is not FlightState.STARTED:
            assert (record.nbytes_done, record.outcome) == (record.version, text)
    return len(puts)


def _filled(recorder: FlightRecorder) -> bytes:
    for version in range(20):
        recorder.event(Op.PUT, version=version, peer="generator-0", outcome="fine")
    return recorder.path.read_bytes()


@pytest.mark.parametrize("nbytes", [0, 1, 8, 100, HEADER_NBYTES - 1])
def test_a_file_shorter_than_its_header_is_no_ring(open_recorder: Open, tmp_path: Path, nbytes: int) -> None:
    path = tmp_path / "cut.ring"
    path.write_bytes(_filled(open_recorder())[:nbytes])
    with pytest.raises(RingFormatError):
        read_ring(path)


def test_a_file_cut_in_its_records_gives_what_is_left(open_recorder: Open, tmp_path: Path) -> None:
    path = tmp_path / "cut.ring"
    path.write_bytes(_filled(open_recorder())[: HEADER_NBYTES + 3 * RECORD_NBYTES + 17])
    ring = read_ring(path)
    assert ring.truncated
    assert [record.version for record in ring.records] == [0, 1, 2]


@pytest.mark.parametrize(
    ("offset", "raw"),
    [
        (0, b"WTRONG"),
        (8, struct.pack("<I", 2)),
        (12, struct.pack("<I", 0)),
        (16, struct.pack("<I", 2**32 - 1)),
        (24, struct.pack("<Q", 0)),
        (24, struct.pack("<Q", 2**64 - 1)),
        (48, struct.pack("<I", 2**32 - 1)),
        (192, b"\xc1"),
        (192, b"\xdf\xff\xff\xff\xff"),
        (192, b"\xc6\xff\xff\xff\xff"),
        (193, b"\xc0"),
    ],
)
def test_a_damaged_header_is_a_typed_error(open_recorder: Open, tmp_path: Path, offset: int, raw: bytes) -> None:
    data = bytearray(_filled(open_recorder()))
    data[offset : offset + len(raw)] = raw
    path = tmp_path / "bad.ring"
    path.write_bytes(data)
    with pytest.raises(RingFormatError):
        read_ring(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stamp", 2**64 - 1),
        ("stamp", 3 << 2),
        ("stamp", 1 << 2 | 1),
        ("stamp", 2),
        ("peer_nbytes", 41),
        ("detail_nbytes", 49),
        ("outcome_nbytes", 255),
        ("state", 0),
        ("state", 1),
        ("state", 200),
    ],
)
def test_a_record_that_makes_no_sense_is_counted_and_left_out(open_recorder: Open, tmp_path: Path, field: str, value: int) -> None:
    data = bytearray(_filled(open_recorder()))
    assert RECORD.fields is not None
    kind, offset = RECORD.fields[field][:2]
    raw = value.to_bytes(kind.itemsize, "little")
    data[HEADER_NBYTES + offset : HEADER_NBYTES + offset + len(raw)] = raw
    path = tmp_path / "bad.ring"
    path.write_bytes(data)
    ring = read_ring(path)
    assert ring.num_torn == 1
    assert [record.version for record in ring.records] == list(range(1, 20))


def test_numbers_of_a_newer_library_stay_numbers(open_recorder: Open, tmp_path: Path) -> None:
    data = bytearray(_filled(open_recorder()))
    data[HEADER_NBYTES + 52 : HEADER_NBYTES + 55] = b"\xff\xff\xff"
    path = tmp_path / "newer.ring"
    path.write_bytes(data)
    first = read_ring(path).records[0]
    assert (first.op, first.backend) == (0xFFFF, 0xFF)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.lists(st.tuples(st.integers(0, HEADER_NBYTES + 20 * RECORD_NBYTES), st.binary(min_size=1, max_size=16)), max_size=8))
def test_any_damage_gives_a_ring_or_a_typed_error(open_recorder: Open, tmp_path: Path, damage: list[tuple[int, bytes]]) -> None:
    source = tmp_path / "source"
    if not source.exists():
        source.write_bytes(_filled(open_recorder()))
    data = bytearray(source.read_bytes())
    for offset, raw in damage:
        data[offset : offset + len(raw)] = raw
    path = tmp_path / "damaged.ring"
    path.write_bytes(data)
    try:
        ring = read_ring(path)
    except RingFormatError:
        return
    assert len(ring.records) + ring.num_torn <= ring.header.num_records


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.ring"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(RingFormatError):
            read_ring(path)
    with pytest.raises(FileNotFoundError):
        read_ring(tmp_path / "missing.ring")


def test_reading_needs_no_native_module(run_python: Callable[..., Any], open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.event(Op.JOIN)

    def program(path: str) -> None:
        import sys
        from pathlib import Path

        sys.modules["wtransport._native"] = None  # type: ignore[assignment]
        from wtransport.recorder.reader import read_ring

        print(len(read_ring(Path(path)).records), "torch" in sys.modules)

    outcome = run_python(program, str(recorder.path))
    assert outcome.stdout.split() == ["1", "False"], outcome.stderr
