"""Strict reading of the lists and integers that manifests and assignments are on the wire."""

from __future__ import annotations

import json
from typing import Final

from wtransport.errors import ProtocolError
from wtransport.weights.box import Box

MAX_TENSORS: Final = 1 << 20
MAX_BOXES: Final = 1 << 22
MAX_DIMS: Final = 64
MAX_NAME_NBYTES: Final = 4096
# Every byte count and offset stays under this, so that int64 arithmetic over them cannot wrap.
MAX_NBYTES: Final = 1 << 60


def encode(value: object) -> bytes:
    """Return lists, strings and integers as bytes, equal ones as equal bytes: JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode(encoded: bytes, what: str) -> object:
    """Read what :func:`encode` wrote, from a peer that is not trusted; what it holds is not checked yet.

    Raises:
        ProtocolError: If *encoded* is not JSON.
    """
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what}: it cannot be read: {error}") from None


def sequence(value: object, what: str, *, at_most: int, exactly: int | None = None) -> list[object] | tuple[object, ...]:
    """Return *value* if it is a list or tuple of an allowed length.

    Raises:
        ProtocolError: If it is not.
    """
    if not isinstance(value, list | tuple) or len(value) > at_most or (exactly is not None and len(value) != exactly):
        wanted = f"exactly {exactly}" if exactly is not None else f"at most {at_most}"
        raise ProtocolError(f"{what}: expected a list of {wanted} entries, got {_describe(value)}")
    return value


def integer(value: object, what: str, *, below: int) -> int:
    """Return *value* if it is an integer (no bool) from 0 to before *below*.

    Raises:
        ProtocolError: If it is not.
    """
    if type(value) is not int or not 0 <= value < below:
        raise ProtocolError(f"{what}: expected an integer in [0, {below}), got {_describe(value)}")
    return value


def text(value: object, what: str, *, max_nbytes: int) -> str:
    """Return *value* if it is a string of at most *max_nbytes* characters.

    Raises:
        ProtocolError: If it is not.
    """
    if type(value) is not str or len(value) > max_nbytes:
        raise ProtocolError(f"{what}: expected a string of at most {max_nbytes} bytes, got {_describe(value)}")
    return value


def dims(value: object, what: str) -> tuple[int, ...]:
    """Return *value* as a tuple of sizes or offsets.

    Raises:
        ProtocolError: If it is not a short list of small enough integers.
    """
    entries = sequence(value, what, at_most=MAX_DIMS)
    return tuple([integer(entry, what, below=MAX_NBYTES) for entry in entries])


def box(offsets: object, sizes: object, what: str) -> Box:
    """Return the box with these *offsets* and *sizes*.

    Raises:
        ProtocolError: If they are not lists of integers of one length.
    """
    first, second = dims(offsets, what), dims(sizes, what)
    if len(first) != len(second):
        raise ProtocolError(f"{what}: a box with {len(first)} offsets and {len(second)} sizes")
    return Box(first, second)


def _describe(value: object) -> str:
    if isinstance(value, list | tuple | dict | str | bytes):
        return f"{type(value).__name__} of length {len(value)}"
    shown = repr(value) if isinstance(value, bool | float | None) else "one out of range" if isinstance(value, int) else "another type"
    return f"{type(value).__name__} ({shown})"
