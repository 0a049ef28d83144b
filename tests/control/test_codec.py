from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.support import CODEC, EVERYTHING, Everything, Ping, Point
from wtransport.control.codec import Codec
from wtransport.control.schema import Cap
from wtransport.errors import InternalError, ProtocolError


def _wire(message: object) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(CODEC.encode(message))
    return fields


def _refused(fields: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        CODEC.decode(msgpack.packb(fields))
    return str(caught.value)


def test_every_kind_of_field_round_trips() -> None:
    assert CODEC.decode(CODEC.encode(EVERYTHING)) == EVERYTHING
    assert type(CODEC.decode(CODEC.encode(EVERYTHING)).level) is type(EVERYTHING.level)


def test_the_class_name_and_the_field_names_are_the_wire_names() -> None:
    assert _wire(Ping(1, b"x")) == {"t": "Ping", "n": 1, "body": b"x"}


def test_an_int_may_stand_for_a_float_where_it_is_made_only() -> None:
    decoded = CODEC.decode(CODEC.encode(replace(EVERYTHING, ratio=2)))
    assert type(decoded.ratio) is float
    assert "'ratio' must be float, not int" in _refused(_wire(EVERYTHING) | {"ratio": 2})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("number", True, "field 'number' must be int, not bool"),
        ("number", 1.0, "must be int, not float"),
        ("small", 8, "field 'small' must be in -3..7"),
        ("small", -4, "must be in -3..7"),
        ("flag", 1, "field 'flag' must be bool, not int"),
        ("ratio", "1", "field 'ratio' must be float, not str"),
        ("text", b"t", "field 'text' must be str, not bytes"),
        ("text", "x" * 4097, "field 'text' must have 0..4096 characters, not 4097"),
        ("short", "123456", "must have 0..5 characters, not 6"),
        ("raw", "r", "field 'raw' must be bytes, not str"),
        ("few", b"12345", "must have 2..4 bytes, not 5"),
        ("few", b"1", "must have 2..4 bytes, not 1"),
        ("maybe", "1", "field 'maybe' must be int, not str"),
        ("many", {}, "field 'many' must be an array, not dict"),
        ("many", [{"x": 1, "label": None}, {"x": "1", "label": None}], "field 'many[1].x' must be int"),
        ("pair", ["a"], "field 'pair' must have 2..2 items, not 1"),
        ("pair", ["a", 1, 2], "must have 2..2 items, not 3"),
        ("pair", [1, "a"], "field 'pair[0]' must be str, not int"),
        ("table", [], "field 'table' must be a map, not list"),
        ("table", {"k": {"x": 1}}, "field \"table['k'].label\" is missing"),
        ("mode", "auto", "field 'mode' must be one of 'off', 'on'"),
        ("mode", ["on"], "must be one of 'off', 'on'"),
        ("point", None, "field 'point' must be a map, not none"),
        ("point", {"x": 1, "label": None, "z": 1}, "field 'point.z' is not known"),
        ("colour", "green", "field 'colour' must be one of 'red', 'blue'"),
        ("colour", {}, "must be one of 'red', 'blue'"),
        ("level", True, "field 'level' must be one of 1, 2"),
    ],
)
def test_a_wrong_field_is_named(name: str, value: object, reason: str) -> None:
    said = _refused(_wire(EVERYTHING) | {name: value})
    assert said.startswith("message Everything: ")
    assert reason in said


def test_missing_and_unknown_fields_are_named() -> None:
    fields = _wire(EVERYTHING)
    assert "message Everything: field 'flag' is missing" in _refused({k: v for k, v in fields.items() if k != "flag"})
    assert "message Everything: field 'extra' is not known" in _refused(fields | {"extra": 1})
    long = _refused(fields | {"x" * 10000: 1})
    assert len(long) < 200


@pytest.mark.parametrize("fields", [{"t": "Nothing"}, {"t": 5}, {}, {"t": None}, {"t": ["Ping"]}, {"t": "Point", "x": 1, "label": None}])
def test_an_unknown_name_is_refused(fields: object) -> None:
    assert "no message is named" in _refused(fields)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x81\xa1t", b"\x01\x01", b"\x81\x01\x01", b"\x81\xa1t\xa1\xff"])
def test_what_is_not_our_msgpack_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(payload)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(pickle.dumps(Ping(1)), id="pickle"),
        pytest.param(pickle.dumps({"t": "Ping"}, protocol=0), id="old pickle"),
        pytest.param(msgpack.packb({"t": "Ping", "n": msgpack.ExtType(5, b"x"), "body": b""}), id="extension"),
        pytest.param(msgpack.packb({"t": "Ping", "n": msgpack.ExtType(5, b""), "body": b""}), id="empty extension"),
        pytest.param(msgpack.packb({"t": "Ping", "n": msgpack.Timestamp(1), "body": b""}), id="timestamp"),
        pytest.param(b"\x83\xa1t\xa4Ping\xa1n\x01\xa1n\x02", id="a key twice"),
        pytest.param(b"\x91" * 5000 + b"\xc0", id="nested 5000 deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="an array of 2**32 items"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="a map of 2**32 entries"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="2**32 bytes"),
        pytest.param(b"[1]", id="json"),
        pytest.param(msgpack.packb([1, 2]), id="an array"),
        pytest.param(msgpack.packb({b"t": "Ping"}), id="bytes as key"),
    ],
)
def test_hostile_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(payload)


@given(payload=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(payload)


@given(position=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_message_or_a_protocol_error(position: int, byte: int) -> None:
    payload = bytearray(CODEC.encode(EVERYTHING))
    payload[position % len(payload)] = byte
    try:
        assert isinstance(CODEC.decode(bytes(payload)), Everything)
    except ProtocolError:
        pass


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=_PLAIN)
def test_plain_data_round_trips(value: object) -> None:
    message = replace(EVERYTHING, anything=value)
    assert CODEC.decode(CODEC.encode(message)) == message


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_plain_data_is_capped_in_depth_both_ways() -> None:
    CODEC.decode(CODEC.encode(replace(EVERYTHING, anything=_nested(16))))
    with pytest.raises(ProtocolError, match="'anything' is nested deeper than 16"):
        CODEC.encode(replace(EVERYTHING, anything=_nested(17)))
    assert "nested deeper than 16" in _refused(_wire(EVERYTHING) | {"anything": _nested(17)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"anything": object()}, "must be plain data, not object"),
        ({"anything": {1: 2}}, "must have str keys, not int"),
        ({"anything": 2**64}, "must be in"),
        ({"number": 2**64}, "'number' must be in"),
        ({"number": True}, "'number' must be int, not bool"),
        ({"many": [Point(1, None)]}, "'many' must be tuple, not list"),
        ({"many": (Point(1, 2),)}, r"'many\[0\].label' must be str, not int"),
        ({"point": Ping(1)}, "'point' must be Point, not Ping"),
        ({"colour": "red"}, "'colour' must be Colour, not str"),
        ({"text": "\ud800"}, "cannot be encoded"),
        ({"table": {1: Point(1, None)}}, "must be str, not int"),
    ],
)
def test_a_wrong_message_fails_where_it_is_made(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        CODEC.encode(replace(EVERYTHING, **change))


def test_only_registered_classes_travel() -> None:
    with pytest.raises(ProtocolError, match="Point is not a registered message"):
        CODEC.encode(Point(1, None))


def test_the_cap_holds_both_ways() -> None:
    small = Codec([Ping], max_frame_nbytes=64)
    with pytest.raises(ProtocolError, match=r"message Ping: field 'body' must have 0\.\.64 bytes"):
        small.encode(Ping(1, bytes(65)))
    with pytest.raises(ProtocolError, match="over the cap of 64"):
        small.encode(Ping(1, bytes(60)))
    with pytest.raises(ProtocolError, match="over the cap of 64"):
        small.decode(CODEC.encode(Ping(1, bytes(60))))


def test_what_a_constructor_refuses_is_a_protocol_error() -> None:
    @dataclass(frozen=True)
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    with pytest.raises(ProtocolError, match="message Even: is refused by Even: odd"):
        Codec([Even]).decode(msgpack.packb({"t": "Even", "n": 1}))


def test_classes_that_cannot_travel_are_refused_when_the_codec_is_made() -> None:
    @dataclass
    class Loose:
        n: int

    @dataclass(frozen=True)
    class Strange:
        n: Annotated[complex, Cap(1)]

    @dataclass(frozen=True)
    class Either:
        n: int | str

    @dataclass(frozen=True)
    class Computed:
        n: int = field(init=False, default=1)

    @dataclass(frozen=True)
    class Named:
        t: int

    for cls, reason in (
        (Loose, "not a frozen dataclass"),
        (int, "not a frozen dataclass"),
        (Strange, r"Strange\.n: .*complex"),
        (Either, r"Either\.n"),
        (Computed, "not set by the constructor"),
        (Named, "has a field 't'"),
    ):
        with pytest.raises(InternalError, match=reason):
            Codec([cls])
    with pytest.raises(InternalError, match="two messages are named Ping"):
        Codec([Ping, Ping])
