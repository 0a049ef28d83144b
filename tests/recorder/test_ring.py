"""What is recorded is what is read back; nothing raises once the ring is open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from wtransport.errors import ConfigError, PeerLostError, RegistrationError
from wtransport.recorder.format import MAX_RECORDS, FlightBackend, FlightState, Op
from wtransport.recorder.reader import read_header, read_ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wtransport.recorder.ring import FlightRecorder

    Open = Callable[..., FlightRecorder]


def test_every_field_is_read_back(open_recorder: Open) -> None:
    recorder = open_recorder()
    seq = recorder.begin(
        Op.WRITE,
        backend=FlightBackend.TCP,
        peer="generator-0",
        version=-7,
        term=2**63,
        publication=5,
        rank=3,
        nbytes=1 << 40,
        detail="bucket 3/17",
    )
    recorder.end(seq, FlightState.CANCELLED, nbytes_done=1 << 39, code=1, outcome="withdrawn by rank 2")
    (record,) = read_ring(recorder.path).records
    assert (record.op, record.backend, record.state) == (Op.WRITE, FlightBackend.TCP, FlightState.CANCELLED)
    assert (record.peer, record.version, record.rank) == ("generator-0", -7, 3)
    assert (record.term, record.publication) == (2**63, 5)
    assert (record.nbytes_total, record.nbytes_done, record.code) == (1 << 40, 1 << 39, 1)
    assert (record.detail, record.outcome) == ("bucket 3/17", "withdrawn by rank 2")
    assert record.thread_id == threading.get_native_id()
    assert record.duration_ns is not None
    assert record.duration_ns >= 0


def test_what_is_not_given_reads_as_absent(open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.begin(Op.JOIN)
    (record,) = read_ring(recorder.path).records
    assert record.state is FlightState.STARTED
    assert (record.version, record.rank, record.t_end_ns, record.duration_ns) == (None, None, None, None)
    assert (record.peer, record.detail, record.outcome) == ("", "", "")


def test_header_says_who_writes(open_recorder: Open, tmp_path: Path) -> None:
    recorder = open_recorder("gen/0", job="../a job", role="generator", rank=4)
    assert recorder.path.parent.parent == tmp_path
    assert recorder.path.stat().st_mode & 0o777 == 0o600
    header = read_header(recorder.path)
    assert (header.meta.job, header.meta.member, header.meta.role, header.meta.rank) == ("../a job", "gen/0", "generator", 4)
    assert header.status == "running"
    recorder.close()
    assert read_header(recorder.path).status == "closed"


def test_an_error_is_recorded_with_its_code(open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.fail(recorder.begin(Op.DELIVER), PeerLostError("no beat for 1 s", peer="generator-1"), nbytes_done=3)
    recorder.fail(recorder.begin(Op.DELIVER), KeyError())
    first, second = read_ring(recorder.path).records
    assert (first.outcome, first.nbytes_done) == ("peer_lost: no beat for 1 s", 3)
    assert (second.outcome, second.state) == ("KeyError", FlightState.FAILED)


def test_an_event_is_over_at_once(open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.event(Op.LOST, peer="generator-1", outcome="silent")
    (record,) = read_ring(recorder.path).records
    assert (record.op, record.state, record.outcome) == (Op.LOST, FlightState.DONE, "silent")


def test_a_second_end_and_ends_after_close_do_nothing(open_recorder: Open) -> None:
    recorder = open_recorder()
    seq = recorder.begin(Op.PUT)
    recorder.end(seq, nbytes_done=1)
    recorder.end(seq, FlightState.FAILED, nbytes_done=2)
    pending = recorder.begin(Op.PUT)
    recorder.close()
    recorder.close()
    recorder.end(pending)
    recorder.end(recorder.begin(Op.PUT))
    recorder.event(Op.LEAVE)
    first, second = read_ring(recorder.path).records
    assert (first.state, first.nbytes_done) == (FlightState.DONE, 1)
    assert second.state is FlightState.STARTED


@pytest.mark.parametrize(
    "odd",
    [
        {"version": 2**80},
        {"version": -(2**80)},
        {"nbytes": -1},
        {"term": 2**70},
        {"publication": -1},
        {"peer": "\udc80" * 200},
        {"detail": "ü" * 300},
    ],
)
def test_odd_arguments_never_raise(open_recorder: Open, odd: dict[str, Any]) -> None:
    recorder = open_recorder()
    recorder.end(recorder.begin(Op.PUT, **odd), nbytes_done=-5, outcome="\udc80é" * 500)
    (record,) = read_ring(recorder.path).records
    assert record.nbytes_done == 0


def test_a_full_ring_keeps_the_newest(open_recorder: Open) -> None:
    recorder = open_recorder(num_records=16)
    for version in range(100):
        recorder.end(recorder.begin(Op.PUT, version=version))
    ring = read_ring(recorder.path)
    assert [record.version for record in ring.records] == list(range(84, 100))
    assert ring.header.next_seq == 100


def test_a_long_operation_is_recorded_though_its_record_was_overwritten(open_recorder: Open) -> None:
    recorder = open_recorder(num_records=16)
    put = recorder.begin(Op.PUT, version=1, nbytes=9)
    (before,) = read_ring(recorder.path).records
    for _ in range(40):
        recorder.event(Op.WRITE)
    recorder.end(put, FlightState.FAILED, nbytes_done=4, outcome="stalled")
    (after,) = [record for record in read_ring(recorder.path).records if record.op is Op.PUT]
    assert after.t_start_ns == before.t_start_ns
    assert after.outcome == "stalled"
    assert after.duration_ns is not None
    assert after.duration_ns > 0
    assert (after.nbytes_done, after.nbytes_total) == (4, 9)


def test_operations_that_never_end_cost_no_memory(open_recorder: Open) -> None:
    recorder = open_recorder(num_records=16)
    seqs = [recorder.begin(Op.WRITE) for _ in range(1000)]
    recorder.end(seqs[0])
    assert all(record.state is FlightState.STARTED for record in read_ring(recorder.path).records)


def test_threads_share_one_ring(open_recorder: Open) -> None:
    recorder = open_recorder(num_records=4096)

    def work(number: int) -> None:
        for i in range(500):
            recorder.end(recorder.begin(Op.WRITE, version=number, nbytes=i, detail=f"t{number}"), nbytes_done=i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_ring(recorder.path).records
    assert sorted(record.seq for record in records) == list(range(2000))
    assert all(record.nbytes_done == record.nbytes_total and record.detail == f"t{record.version}" for record in records)
    assert len({record.thread_id for record in records}) == 4


def test_no_room_is_a_typed_error_and_leaves_no_file(run_python: Callable[..., Any], tmp_path: Path) -> None:
    def program(folder: str) -> None:
        import resource
        from pathlib import Path

        from wtransport.errors import RegistrationError
        from wtransport.recorder.ring import FlightRecorder

        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        try:
            FlightRecorder.open(Path(folder), job="j", member="m", role="trainer", rank=0, incarnation="0" * 32)
        except RegistrationError as error:
            print(error)
            print(error.hint)
            print(list(Path(folder).glob("*/*")))

    outcome = run_python(program, str(tmp_path))
    assert outcome.returncode == 0, outcome.stderr
    message, hint, left = outcome.stdout.splitlines()
    assert "posix_fallocate" in message
    assert "recorder_dir" in hint
    assert left == "[]"


def test_a_folder_that_cannot_be_made_is_a_typed_error(open_recorder: Open, tmp_path: Path) -> None:
    (tmp_path / "job").write_text("")
    with pytest.raises(RegistrationError, match="cannot be made"):
        open_recorder()


@pytest.mark.parametrize("num_records", [0, -1, MAX_RECORDS + 1])
def test_a_size_out_of_range_is_refused(open_recorder: Open, num_records: int) -> None:
    with pytest.raises(ConfigError):
        open_recorder(num_records=num_records)


def test_a_forked_child_leaves_the_ring_open(run_python: Callable[..., Any], tmp_path: Path) -> None:
    def program(folder: str) -> None:
        import os
        from pathlib import Path

        from wtransport.recorder.format import Op
        from wtransport.recorder.reader import read_ring
        from wtransport.recorder.ring import FlightRecorder

        recorder = FlightRecorder.open(Path(folder), job="j", member="m", role="trainer", rank=0, incarnation="0" * 32)
        child = os.fork()
        if child == 0:
            recorder.close()
            os._exit(0)
        os.waitpid(child, 0)
        recorder.event(Op.JOIN)
        ring = read_ring(recorder.path)
        print(ring.header.status, len(ring.records))

    outcome = run_python(program, str(tmp_path))
    assert outcome.stdout.split() == ["running", "1"], outcome.stderr
