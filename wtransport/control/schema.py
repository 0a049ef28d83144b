"""What an annotation allows on the wire: one converter each way, compiled once per annotation."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wtransport.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

INT_LOW = -(2**63)
INT_HIGH = 2**64 - 1
STR_CAP = 4096
COUNT_CAP = 1 << 20
PLAIN_DEPTH_CAP = 16


@dataclass(frozen=True)
class Range:
    """``Annotated[int, Range(lo, hi)]``: least and greatest value, both included."""

    lo: int
    hi: int


@dataclass(frozen=True)
class Cap:
    """``Annotated[T, Cap(most)]``: most (and fewest) characters, bytes, items or entries."""

    most: int
    fewest: int = 0


class Mismatch(Exception):
    """A value is not what the annotation allows; *path* grows on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def inside(self, step: str) -> Mismatch:
        """Say in which field or item it happened."""
        self.path.append(step)
        return self

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).removeprefix(".")
        return f"field {where!r} {self.reason}" if where else self.reason


class Converter(NamedTuple):
    """``pack`` makes plain msgpack data of a value, ``unpack`` the value of it; both check."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class Compiler:
    """Makes converters of annotations; each dataclass is compiled once.

    Args:
        max_nbytes: Cap of ``bytes`` that have none of their own.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._records: dict[type, Converter] = {}
        self._open: list[type] = []

    def record(self, cls: type) -> Converter:
        """Compile a frozen dataclass to a map of its fields.

        Raises:
            InternalError: If the class, or an annotation in it, cannot go over the wire.
        """
        if cls in self._records:
            return self._records[cls]
        params = getattr(cls, "__dataclass_params__", None)
        if params is None or not params.frozen:
            raise InternalError(f"{cls.__name__} is not a frozen dataclass")
        if cls in self._open:
            raise InternalError(f"{cls.__name__} contains itself")
        self._open.append(cls)
        hints = typing.get_type_hints(cls, include_extras=True)
        members = {}
        for field in dataclasses.fields(cls):
            if not field.init:
                raise InternalError(f"{cls.__name__}.{field.name} is not set by the constructor")
            try:
                members[field.name] = self.compile(hints[field.name])
            except InternalError as error:
                raise InternalError(f"{cls.__name__}.{field.name}: {error.message}") from error
        self._open.pop()
        self._records[cls] = _record(cls, members)
        return self._records[cls]

    def compile(self, hint: Any) -> Converter:
        """Compile one annotation.

        Raises:
            InternalError: If it is none of those that can go over the wire.
        """
        limit: Range | Cap | None = None
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            limit = next((extra for extra in extras if isinstance(extra, Range | Cap)), None)
        while isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        cap = limit if isinstance(limit, Cap) else None
        span = limit if isinstance(limit, Range) else None
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if hint is int:
            return _integer(span or Range(INT_LOW, INT_HIGH))
        if hint is bool:
            return _exact(bool)
        if hint is float:
            return _FLOAT
        if hint is str:
            return _sized(str, cap or Cap(STR_CAP), "characters")
        if hint is bytes:
            return _sized(bytes, cap or Cap(self._max_nbytes), "bytes")
        if hint is object:
            return Converter(_plain, _plain)
        if origin is Literal and all(type(value) is str for value in args):
            return _literal(args)
        if origin in (types.UnionType, typing.Union) and types.NoneType in args and len(args) == 2:
            return _optional(self.compile(next(arg for arg in args if arg is not types.NoneType)))
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return _items(self.compile(args[0]), cap or Cap(COUNT_CAP))
        if origin is tuple and args:
            return _row([self.compile(arg) for arg in args])
        if origin is dict and args[0] is str:
            return _mapping(self.compile(str), self.compile(args[1]), cap or Cap(COUNT_CAP))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            if not all(type(member.value) in (str, int) for member in hint):
                raise InternalError(f"{hint.__name__} has values other than str and int")
            return _enumeration(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.record(hint)
        raise InternalError(f"{hint!r} cannot go over the wire")


def kind(value: object) -> str:
    """Name a value's type for a message, never the value itself (it may be a secret, or huge)."""
    return "none" if value is None else type(value).__name__


def _exact(expected: type) -> Converter:
    def check(value: Any) -> Any:
        if type(value) is not expected:
            raise Mismatch(f"must be {expected.__name__}, not {kind(value)}")
        return value

    return Converter(check, check)


def _pack_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise Mismatch(f"must be float, not {kind(value)}")
    return float(value)


# A caller may write 1 for 1.0; on the wire a float is a float.
_FLOAT = Converter(_pack_float, _exact(float).unpack)


def _integer(span: Range) -> Converter:
    lo, hi = max(span.lo, INT_LOW), min(span.hi, INT_HIGH)

    def check(value: Any) -> int:
        if type(value) is not int:
            raise Mismatch(f"must be int, not {kind(value)}")
        if not lo <= value <= hi:
            raise Mismatch(f"must be in {lo}..{hi}")
        return value

    return Converter(check, check)


def _check_count(count: int, cap: Cap, unit: str) -> None:
    if not cap.fewest <= count <= cap.most:
        raise Mismatch(f"must have {cap.fewest}..{cap.most} {unit}, not {count}")


def _sized(expected: type[str] | type[bytes], cap: Cap, unit: str) -> Converter:
    def check(value: Any) -> Any:
        if type(value) is not expected:
            raise Mismatch(f"must be {expected.__name__}, not {kind(value)}")
        _check_count(len(value), cap, unit)
        return value

    return Converter(check, check)


def _literal(values: tuple[str, ...]) -> Converter:
    names = ", ".join(map(repr, values))

    def check(value: Any) -> Any:
        if type(value) is not str or value not in values:
            raise Mismatch(f"must be one of {names}")
        return value

    return Converter(check, check)


def _enumeration(cls: type[enum.Enum]) -> Converter:
    # By type too: True and 1 are equal as keys of a dict, and different on the wire.
    members = {(type(member.value), member.value): member for member in cls}
    names = ", ".join(repr(member.value) for member in cls)

    def pack(value: Any) -> Any:
        if type(value) is not cls:
            raise Mismatch(f"must be {cls.__name__}, not {kind(value)}")
        return value.value

    def unpack(value: Any) -> enum.Enum:
        if type(value) not in (str, int) or (type(value), value) not in members:
            raise Mismatch(f"must be one of {names}")
        return members[type(value), value]

    return Converter(pack, unpack)


def _optional(inner: Converter) -> Converter:
    pack, unpack = inner

    return Converter(
        lambda value: None if value is None else pack(value),
        lambda value: None if value is None else unpack(value),
    )


def _each(convert: Callable[[Any], Any], values: Any) -> list[Any]:
    done: list[Any] = []
    try:
        for value in values:
            done.append(convert(value))
    except Mismatch as error:
        raise error.inside(f"[{len(done)}]") from None
    return done


def _items(item: Converter, cap: Cap) -> Converter:
    def pack(value: Any) -> list[Any]:
        if type(value) is not tuple:
            raise Mismatch(f"must be tuple, not {kind(value)}")
        _check_count(len(value), cap, "items")
        return _each(item.pack, value)

    def unpack(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Mismatch(f"must be an array, not {kind(value)}")
        _check_count(len(value), cap, "items")
        return tuple(_each(item.unpack, value))

    return Converter(pack, unpack)


def _row(items: list[Converter]) -> Converter:
    packs, unpacks = [item.pack for item in items], [item.unpack for item in items]
    cap = Cap(len(items), len(items))

    def convert(converts: list[Callable[[Any], Any]], value: Any) -> list[Any]:
        _check_count(len(value), cap, "items")
        return _each(lambda pair: pair[0](pair[1]), zip(converts, value, strict=True))

    def pack(value: Any) -> list[Any]:
        if type(value) is not tuple:
            raise Mismatch(f"must be tuple, not {kind(value)}")
        return convert(packs, value)

    def unpack(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Mismatch(f"must be an array, not {kind(value)}")
        return tuple(convert(unpacks, value))

    return Converter(pack, unpack)


def _mapping(key: Converter, entry: Converter, cap: Cap) -> Converter:
    def convert(name_of: Callable[[Any], Any], value_of: Callable[[Any], Any], value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(f"must be a map, not {kind(value)}")
        _check_count(len(value), cap, "entries")
        done: dict[str, Any] = {}
        for name, member in value.items():
            try:
                done[name_of(name)] = value_of(member)
            except Mismatch as error:
                raise error.inside(f"[{str(name)[:64]!r}]") from None
        return done

    return Converter(
        lambda value: convert(key.pack, entry.pack, value),
        lambda value: convert(key.unpack, entry.unpack, value),
    )


def _record(cls: type, members: dict[str, Converter]) -> Converter:
    packs = [(name, converter.pack) for name, converter in members.items()]
    unpacks = [(name, converter.unpack) for name, converter in members.items()]

    def pack(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            raise Mismatch(f"must be {cls.__name__}, not {kind(value)}")
        done = {}
        for name, convert in packs:
            try:
                done[name] = convert(getattr(value, name))
            except Mismatch as error:
                raise error.inside(f".{name}") from None
        return done

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"must be a map, not {kind(value)}")
        done = {}
        for name, convert in unpacks:
            if name not in value:
                raise Mismatch("is missing").inside(f".{name}")
            try:
                done[name] = convert(value[name])
            except Mismatch as error:
                raise error.inside(f".{name}") from None
        if len(value) != len(done):
            unknown = next(name for name in value if name not in done)
            raise Mismatch("is not known").inside(f".{str(unknown)[:64]}")
        try:
            return cls(**done)
        except ValueError as error:
            raise Mismatch(f"is refused by {cls.__name__}: {error}") from error

    return Converter(pack, unpack)


def _plain(value: Any, depth: int = PLAIN_DEPTH_CAP) -> Any:
    """Check and copy plain data (none, bool, int, float, str, bytes, arrays, maps by str)."""
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int:
        if not INT_LOW <= value <= INT_HIGH:
            raise Mismatch(f"must be in {INT_LOW}..{INT_HIGH}")
        return value
    if depth == 0:
        raise Mismatch(f"is nested deeper than {PLAIN_DEPTH_CAP}")
    if type(value) in (list, tuple):
        _check_count(len(value), Cap(COUNT_CAP), "items")
        return [_plain(item, depth - 1) for item in value]
    if type(value) is dict:
        _check_count(len(value), Cap(COUNT_CAP), "entries")
        for name in value:
            if type(name) is not str:
                raise Mismatch(f"must have str keys, not {kind(name)}")
        return {name: _plain(item, depth - 1) for name, item in value.items()}
    raise Mismatch(f"must be plain data, not {kind(value)}")
