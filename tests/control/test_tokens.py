from __future__ import annotations

import pytest

from wtransport.control.tokens import TOKEN_NBYTES, TokenTable
from wtransport.errors import BusyError


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_token_opens_once() -> None:
    table: TokenTable[str] = TokenTable()
    token = table.issue("a", ttl_s=10)
    assert len(token) == TOKEN_NBYTES
    assert table.redeem(token) == "a"
    assert table.redeem(token) is None
    assert len(table) == 0


def test_a_token_opens_for_its_time_only() -> None:
    clock = _Clock()
    table: TokenTable[str] = TokenTable(clock=clock)
    early, late = table.issue("a", ttl_s=10), table.issue("b", ttl_s=10)
    clock.now_s = 9.9
    assert table.redeem(early) == "a"
    clock.now_s = 10.0
    assert table.redeem(late) is None


def test_unknown_tokens_of_any_length_open_nothing() -> None:
    table: TokenTable[str] = TokenTable()
    token = table.issue("a", ttl_s=10)
    for wrong in (b"", b"x", bytes(32), token[:-1], token + b"x", bytes(1000)):
        assert table.redeem(wrong) is None
    assert table.redeem(token) == "a"


def test_the_table_is_bounded_and_forgets_what_has_expired() -> None:
    clock = _Clock()
    table: TokenTable[int] = TokenTable(max_tokens=3, clock=clock)
    for value in range(3):
        table.issue(value, ttl_s=value + 1)
    with pytest.raises(BusyError, match="3 connection tokens"):
        table.issue(9, ttl_s=1)
    clock.now_s = 1.0
    table.issue(9, ttl_s=1)
    assert len(table) == 3


def test_tokens_can_be_taken_back() -> None:
    table: TokenTable[str] = TokenTable()
    tokens = [table.issue(value, ttl_s=10) for value in ("a", "b", "a")]
    table.revoke("a")
    assert [table.redeem(token) for token in tokens] == [None, "b", None]
