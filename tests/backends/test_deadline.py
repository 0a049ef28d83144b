from __future__ import annotations

import pytest

from wtransport.backends.deadline import Deadline


def test_starts_at_the_first_look() -> None:
    deadline = Deadline(2.0)
    assert deadline.remaining_s(100.0) == 2.0
    assert not deadline.expired(101.9)
    assert deadline.expired(102.0)


def test_progress_renews_it() -> None:
    deadline = Deadline(2.0)
    assert not deadline.expired(100.0)
    deadline.renew(101.5)
    assert deadline.remaining_s(102.0) == 1.5
    assert deadline.expired(103.5)


def test_works_that_share_it_live_on_each_others_progress() -> None:
    deadline = Deadline(1.0)
    for now in range(10):
        assert not deadline.expired(now + 0.5)
        deadline.renew(float(now + 1))


def test_older_news_does_not_shorten_it() -> None:
    deadline = Deadline(1.0)
    deadline.renew(10.0)
    deadline.renew(5.0)
    assert deadline.remaining_s(10.0) == 1.0


def test_silence_must_have_a_length() -> None:
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            Deadline(bad)
