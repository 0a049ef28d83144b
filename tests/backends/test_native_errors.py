"""The one list of native codes and the one converter agree, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wtransport import _native
from wtransport.backends.native_errors import CODES, ERRORS, Where, code_name, fresh, native_call, native_error
from wtransport.errors import ConfigError, DeadlineError, InternalError, PeerLostError, RegistrationError, TransportError

DEFINITIONS = Path(__file__).parents[2] / "csrc" / "core" / "error_codes.def"


def test_every_native_code_has_an_error_and_every_error_a_code() -> None:
    assert set(CODES) == set(ERRORS) | {"OK"}
    assert CODES["OK"] == 0
    assert dict(CODES) == _native.error_codes()


def test_the_list_is_the_one_in_the_source() -> None:
    defined = re.findall(r"^WT_ERROR\((\w+), (\d+),", DEFINITIONS.read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in defined} == dict(CODES)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_converts(name: str) -> None:
    where = Where("shm", "gen-0", 3, "write")
    error = native_error(CODES[name], "in so many words", where, nbytes_done=5, nbytes_expected=9)
    assert type(error) is ERRORS[name][0]
    assert code_name(CODES[name]) == name
    assert error.message == "in so many words"
    assert (error.backend, error.peer, error.epoch, error.phase) == ("shm", "gen-0", 3, "write")
    assert (error.nbytes_done, error.nbytes_expected) == (5, 9)


def test_unknown_code_is_a_bug() -> None:
    error = native_error(4711, "")
    assert isinstance(error, InternalError)
    assert "4711" in str(error)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MemoryError("x"), RegistrationError),
        (OSError("x"), RegistrationError),
        (ValueError("x"), ConfigError),
        (TypeError("x"), ConfigError),
    ],
)
def test_what_a_native_call_raises_becomes_typed(raised: Exception, expected: type[TransportError]) -> None:
    with pytest.raises(expected, match="mapping: x") as caught, native_call("mapping"):
        raise raised
    assert caught.value.__cause__ is raised


def test_a_fresh_error_is_equal_in_all_but_identity() -> None:
    first = DeadlineError("late", in_flight=True, peer="gen-0", hint="wait")
    second = fresh(first)
    assert second is not first
    assert second.__cause__ is first
    assert isinstance(second, DeadlineError)
    assert second.in_flight
    assert str(second) == str(first)
    assert str(fresh(PeerLostError("gone", epoch=2))) == "gone [epoch=2]"
