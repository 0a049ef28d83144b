"""Every message of the session travels: values drawn from the annotations come back equal."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wtransport.control.codec import Codec
from wtransport.control.schema import Cap, Range
from wtransport.session.messages import MESSAGES

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    limit = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, *extras = typing.get_args(hint)
        limit = next((extra for extra in extras if isinstance(extra, Range | Cap)), None)
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    span = limit if isinstance(limit, Range) else Range(-(2**63), 2**64 - 1)
    cap = limit if isinstance(limit, Cap) else Cap(5)
    if hint is int:
        return st.integers(span.lo, span.hi)
    if hint is str:
        return st.text(min_size=cap.fewest, max_size=cap.most)
    if hint is bytes:
        return st.binary(min_size=cap.fewest, max_size=cap.most)
    if hint is bool:
        return st.booleans()
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is object:
        return _PLAIN
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (types.UnionType, typing.Union):
        return st.none() | _values(next(arg for arg in args if arg is not types.NoneType))
    if origin is tuple and args[1:] == (Ellipsis,):
        return st.lists(_values(args[0]), min_size=cap.fewest, max_size=min(cap.most, 3)).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, args))
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), _values(args[1]), max_size=3)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return _instances(hint)


def _instances(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: _values(hints[field.name]) for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_round_trips(cls: type) -> None:
    codec = Codec(MESSAGES)

    @given(message=_instances(cls))
    def check(message: object) -> None:
        assert codec.decode(codec.encode(message)) == message

    check()
