from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wtransport.control.frames import FrameDecoder, encode_frame
from wtransport.errors import ProtocolError


@given(payloads=st.lists(st.binary(max_size=300), max_size=8), cuts=st.lists(st.integers(0, 2500)))
def test_any_cutting_of_the_stream_gives_the_same_payloads(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(payload, 300) for payload in payloads)
    decoder = FrameDecoder(300)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    found = [payload for start, end in pairwise(bounds) for payload in decoder.feed(stream[start:end])]
    assert found == payloads
    assert decoder.pending_nbytes == 0


def test_a_frame_over_the_cap_is_refused_by_its_length_alone() -> None:
    decoder = FrameDecoder(100)
    with pytest.raises(ProtocolError, match=r"101 bytes is over the cap of 100"):
        decoder.feed((101).to_bytes(4, "big"))
    assert decoder.pending_nbytes == 0
    with pytest.raises(ProtocolError, match="101 bytes"):
        decoder.feed(b"more")


def test_frames_before_a_refused_one_can_be_taken_out_first() -> None:
    decoder = FrameDecoder(10)
    decoder.push(encode_frame(b"good", 10) + b"\xff\xff\xff\xff")
    assert decoder.pop() == b"good"
    with pytest.raises(ProtocolError, match="4294967295"):
        decoder.pop()


def test_a_raised_cap_holds_from_the_next_frame() -> None:
    decoder = FrameDecoder(4)
    decoder.push(encode_frame(b"1234", 4) + encode_frame(b"12345", 5))
    assert decoder.pop() == b"1234"
    decoder.max_frame_nbytes = 5
    assert decoder.pop() == b"12345"
    assert decoder.pop() is None


def test_too_long_a_payload_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="5 bytes is over the cap of 4"):
        encode_frame(b"12345", 4)
