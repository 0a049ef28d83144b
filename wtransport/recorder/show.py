"""Flight records for people (a table) and for programs (plain values for JSON)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from wtransport.recorder.format import FlightBackend, FlightState, Op
from wtransport.recorder.timeline import wall_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wtransport.recorder.reader import Ring
    from wtransport.recorder.timeline import Entry, Timeline

_STYLES = {
    FlightState.STARTED: "yellow",
    FlightState.DONE: "green",
    FlightState.FAILED: "bold red",
    FlightState.CANCELLED: "magenta",
}


def table_of(entries: Sequence[Entry]) -> Table:
    """One row an operation, oldest first; times are UTC."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("time", no_wrap=True)
    table.add_column("member", overflow="fold")
    table.add_column("op", no_wrap=True)
    table.add_column("state", overflow="fold")
    table.add_column("peer", overflow="fold")
    table.add_column("version", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("GB/s", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for entry in entries:
        record = entry.record
        rate = entry.gb_per_s
        backend = "" if record.backend == FlightBackend.NONE else f" {_name(record.backend, 'backend')}"
        # Text, not str: a name from outside must not be taken for markup.
        table.add_row(
            Text(wall_text(entry.wall_start_ns).partition("T")[2].rstrip("Z") or str(entry.wall_start_ns)),
            Text(_printable(entry.header.meta.member)),
            Text(_name(record.op, "op") + backend),
            Text(_state(entry), style="bold red" if entry.failed else _STYLES[record.state]),
            Text(_printable(record.peer)),
            Text(_version(entry)),
            Text(_bytes(entry)),
            Text(_seconds(record.duration_ns)),
            Text("" if rate is None else f"{rate:.2f}"),
            Text(_what(entry)),
        )
    return table


def ring_line(ring: Ring) -> str:
    """One sentence on a ring: who wrote it, whether the process lives, and what is missing."""
    header = ring.header
    meta = header.meta
    rank = f" {meta.rank}" if meta.rank >= 0 else ""
    status = {
        "closed": "closed in good order",
        "killed": "the process died without closing it",
        "running": "running",
        "unknown": f"ran on {_printable(meta.hostname)}; whether it still does is not known here",
    }[header.status]
    parts = [f"{_printable(meta.member)} ({_printable(meta.role)}{rank}, pid {header.pid}): {status}"]
    in_flight = sum(record.state is FlightState.STARTED for record in ring.records)
    if in_flight:
        parts.append(f"{in_flight} in flight")
    overwritten = max(0, header.next_seq - header.num_records)
    if overwritten:
        parts.append(f"{overwritten} older overwritten")
    if header.num_dropped:
        parts.append(f"{header.num_dropped} not recorded")
    if ring.num_torn:
        parts.append(f"{ring.num_torn} torn")
    if ring.truncated:
        parts.append("the file is cut short")
    return ", ".join(parts)


def json_of(timeline: Timeline, entries: Sequence[Entry]) -> dict[str, Any]:
    """The chosen *entries* and the rings they come from; ``gb_per_s`` is 10**9 bytes a second."""
    return {
        "rings": [_ring_json(ring) for ring in timeline.rings],
        "records": [_entry_json(entry) for entry in entries],
        "unreadable": [{"path": str(item.path), "reason": item.reason} for item in timeline.unreadable],
    }


def _ring_json(ring: Ring) -> dict[str, Any]:
    header = ring.header
    return {
        "path": str(header.path),
        "job": header.meta.job,
        "member": header.meta.member,
        "role": header.meta.role,
        "rank": header.meta.rank,
        "incarnation": header.meta.incarnation,
        "library": header.meta.library,
        "hostname": header.meta.hostname,
        "pid": header.pid,
        "process": header.status,
        "opened": wall_text(header.wall_open_ns),
        "num_operations": header.next_seq,
        "num_records": header.num_records,
        "num_dropped": header.num_dropped,
        "num_torn": ring.num_torn,
        "truncated": ring.truncated,
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    record = entry.record
    return {
        "time": wall_text(entry.wall_start_ns),
        "wall_start_ns": entry.wall_start_ns,
        "member": entry.header.meta.member,
        "incarnation": entry.header.meta.incarnation,
        "pid": entry.header.pid,
        "process": entry.header.status,
        "seq": record.seq,
        "op": _name(record.op, "op"),
        "state": record.state.name.lower(),
        "failed": entry.failed,
        "backend": None if record.backend == FlightBackend.NONE else _name(record.backend, "backend"),
        "peer": record.peer or None,
        "version": record.version,
        "publication": [record.term, record.publication] if record.term or record.publication else None,
        "rank": record.rank,
        "nbytes_total": record.nbytes_total,
        "nbytes_done": record.nbytes_done,
        "duration_s": None if record.duration_ns is None else record.duration_ns / 1e9,
        "age_s": None if entry.age_ns is None else entry.age_ns / 1e9,
        "gb_per_s": entry.gb_per_s,
        "code": record.code,
        "detail": record.detail,
        "outcome": record.outcome,
        "thread_id": record.thread_id,
    }


def op_names() -> list[str]:
    """Names of the operations, as shown and as chosen by."""
    return [op.name.lower() for op in Op]


def _name(value: int, kind: str) -> str:
    return value.name.lower() if isinstance(value, IntEnum) else f"{kind} {value}"


def _state(entry: Entry) -> str:
    if entry.age_ns is None:
        return entry.record.state.name.lower()
    age = _seconds(entry.age_ns)
    return f"killed in flight, {age}" if entry.header.killed else f"in flight, {age}"


def _version(entry: Entry) -> str:
    record = entry.record
    version = "" if record.version is None else str(record.version)
    return f"{version}@{record.term}.{record.publication}" if record.term or record.publication else version


def _bytes(entry: Entry) -> str:
    record = entry.record
    if not record.nbytes_total and not record.nbytes_done:
        return ""
    if entry.age_ns is not None:
        return f"?/{_nbytes(record.nbytes_total)}"
    if record.nbytes_done == record.nbytes_total:
        return _nbytes(record.nbytes_total)
    return f"{_nbytes(record.nbytes_done)}/{_nbytes(record.nbytes_total)}"


def _what(entry: Entry) -> str:
    record = entry.record
    parts = [_printable(record.detail), _printable(record.outcome)]
    if record.code and not record.outcome:
        parts.append(f"native error {record.code}")
    return "; ".join(part for part in parts if part)


def _printable(text: str) -> str:
    # Control characters in a name from outside must not reach the terminal.
    return "".join(char if char.isprintable() else "?" for char in text)


def _nbytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _seconds(duration_ns: int | None) -> str:
    if duration_ns is None:
        return ""
    if abs(duration_ns) < 1_000_000:
        return f"{duration_ns / 1e3:.1f} us"
    if abs(duration_ns) < 1_000_000_000:
        return f"{duration_ns / 1e6:.1f} ms"
    return f"{duration_ns / 1e9:.2f} s"
