"""Codec: frozen dataclasses to msgpack maps and back, believed only after every check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from wtransport.control.schema import COUNT_CAP, Compiler, Converter, Mismatch, kind
from wtransport.errors import InternalError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPE_KEY = "t"
DEFAULT_MAX_FRAME_NBYTES = 64 << 20


class Codec:
    """Encodes a message as ``{"t": class name, field: value, ...}``.

    Both directions check types, ranges and sizes, so that a wrong message fails where it was made.
    ``Annotated[int, Range(lo, hi)]`` and ``Annotated[T, Cap(most)]``, both of ``schema``, narrow a
    field. A codec holds nothing but what it compiled: one may serve many channels and threads.

    Args:
        registry: The classes that may travel.
        max_frame_nbytes: Cap of one encoded message, and of everything inside it.

    Raises:
        InternalError: If a class cannot travel, or two have one name.
    """

    def __init__(self, registry: Sequence[type], *, max_frame_nbytes: int = DEFAULT_MAX_FRAME_NBYTES) -> None:
        self.max_frame_nbytes = max_frame_nbytes
        compiler = Compiler(max_frame_nbytes)
        self._by_name: dict[str, Converter] = {}
        self._by_class: dict[type, Converter] = {}
        for cls in registry:
            if cls.__name__ in self._by_name:
                raise InternalError(f"two messages are named {cls.__name__}")
            converter = compiler.record(cls)
            if _TYPE_KEY in cls.__dataclass_fields__:  # type: ignore[attr-defined]
                raise InternalError(f"{cls.__name__} has a field {_TYPE_KEY!r}: the name's key")
            self._by_name[cls.__name__] = self._by_class[cls] = converter

    def encode(self, message: object) -> bytes:
        """Encode *message*.

        Raises:
            ProtocolError: If its class is not registered, a field is not what its annotation says,
                or it is longer than the cap.
        """
        name = type(message).__name__
        converter = self._by_class.get(type(message))
        if converter is None:
            raise ProtocolError(f"{name} is not a registered message")
        try:
            fields = converter.pack(message)
            payload: bytes = msgpack.packb({_TYPE_KEY: name, **fields}, use_bin_type=True)
        except Mismatch as error:
            raise ProtocolError(f"message {name}: {error}") from None
        except ValueError as error:
            raise ProtocolError(f"message {name} cannot be encoded: {error}") from error
        if len(payload) > self.max_frame_nbytes:
            raise ProtocolError(f"message {name} has {len(payload)} bytes, over the cap of {self.max_frame_nbytes}")
        return payload

    def decode(self, payload: bytes) -> Any:
        """Decode one payload into an instance of a registered class.

        Raises:
            ProtocolError: If it is not msgpack, names no registered class, or a field is missing,
                unknown, of another type, out of range or too long; the message names both.
        """
        fields = _unpack(payload, self.max_frame_nbytes)
        if type(fields) is not dict:
            raise ProtocolError(f"a message must be a map, not {kind(fields)}")
        name = fields.pop(_TYPE_KEY, None)
        converter = self._by_name.get(name) if type(name) is str else None
        if converter is None:
            shown = repr(name[:64]) if type(name) is str else kind(name)
            raise ProtocolError(f"no message is named {shown}")
        try:
            return converter.unpack(fields)
        except Mismatch as error:
            raise ProtocolError(f"message {name}: {error}") from None


def _unpack(payload: bytes, max_nbytes: int) -> Any:
    if len(payload) > max_nbytes:
        raise ProtocolError(f"a message of {len(payload)} bytes is over the cap of {max_nbytes}")
    most = min(len(payload), COUNT_CAP)
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            use_list=True,
            object_pairs_hook=_unique,
            ext_hook=_no_ext,
            max_str_len=len(payload),
            max_bin_len=len(payload),
            max_array_len=most,
            max_map_len=most,
            max_ext_len=0,
        )
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame is not msgpack as it is used here: {error!r}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a map names one key twice")
    return fields


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} of {len(data)} bytes")
