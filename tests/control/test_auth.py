from __future__ import annotations

import msgpack
import pytest

from tests.control.support import OTHER_SECRET, SECRET
from wtransport.control.auth import HANDSHAKE_CAP_NBYTES, Handshake
from wtransport.errors import AuthError, ProtocolError


def _pair(**server_options: object) -> tuple[Handshake, Handshake]:
    client = Handshake("client", SECRET, {"who": "client"})
    server = Handshake("server", SECRET, {"who": "server"}, **server_options)  # type: ignore[arg-type]
    return client, server


def _run(client: Handshake, server: Handshake) -> None:
    to_server, to_client = client.start(), server.start()
    while to_server or to_client:
        to_client += [answer for payload in to_server for answer in server.receive(payload)]
        to_server = [answer for payload in to_client for answer in client.receive(payload)]
        to_client = []


def _changed(payload: bytes, **fields: object) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(payload) | fields)
    return packed


def test_two_that_know_the_secret_learn_each_others_hello() -> None:
    client, server = _pair()
    _run(client, server)
    assert client.done
    assert server.done
    assert client.peer_hello == {"who": "server"}
    assert server.peer_hello == {"who": "client"}


def test_a_client_with_another_secret_is_refused_and_told() -> None:
    client, server = Handshake("client", OTHER_SECRET, {}), _pair()[1]
    _run(client, server)
    assert isinstance(server.error, AuthError)
    assert isinstance(client.error, AuthError)
    assert "the server refused" in str(client.error)
    assert not client.done
    assert not server.done


def test_a_server_with_another_secret_learns_no_hello() -> None:
    client = Handshake("client", SECRET, {"who": "client"})
    impostor = Handshake("server", OTHER_SECRET, {})
    (opening,) = client.start()
    (challenge,) = impostor.receive(opening)
    (proof,) = client.receive(challenge)
    # An impostor cannot check the proof: it goes on as if it had, with a mac of its own.
    assert impostor.receive(proof)
    assert client.receive(_changed(proof, mac=bytes(32))) == []
    assert isinstance(client.error, AuthError)


def test_a_proof_of_another_connection_is_worth_nothing() -> None:
    client, server = _pair()
    (opening,) = client.start()
    (proof,) = client.receive(server.receive(opening)[0])
    again = _pair()[1]
    again.receive(opening)
    again.receive(proof)
    assert isinstance(again.error, AuthError)
    assert not again.done


def test_our_own_challenge_sent_back_is_refused() -> None:
    client = _pair()[0]
    (opening,) = client.start()
    client.receive(_changed(opening, t="AuthChallenge"))
    assert isinstance(client.error, AuthError)
    assert "own challenge" in str(client.error)


def test_our_own_frames_sent_back_are_out_of_order() -> None:
    client = _pair()[0]
    (opening,) = client.start()
    client.receive(opening)
    assert isinstance(client.error, ProtocolError)
    assert "AuthOpen where AuthChallenge was expected" in str(client.error)


def test_our_own_proof_sent_back_is_refused() -> None:
    client, server = _pair()
    (proof,) = client.receive(server.receive(client.start()[0])[0])
    client.receive(proof)
    assert isinstance(client.error, AuthError)


def test_a_server_is_no_oracle_for_a_second_connection() -> None:
    """A stranger that knows nothing plays two connections of one server against each other."""
    victim, oracle = _pair()[1], _pair()[1]
    (opening,) = Handshake("client", OTHER_SECRET, {}).start()
    (challenge,) = victim.receive(opening)
    (answer,) = oracle.receive(_changed(challenge, t="AuthOpen"))
    assert b"mac" not in answer
    (refusal,) = victim.receive(_changed(answer, t="AuthProof"))
    assert b"AuthRefusal" in refusal


@pytest.mark.parametrize("fields", [{"version": 0}, {"version": 2}, {"digest": "wt0"}])
@pytest.mark.parametrize("direction", ["to the server", "to the client"])
def test_what_was_altered_on_the_way_is_not_agreed_on(fields: dict[str, object], direction: str) -> None:
    client, server = _pair()
    (opening,) = client.start()
    if direction == "to the server":
        server.receive(_changed(opening, **fields))
        assert isinstance(server.error, ProtocolError)
    else:
        client.receive(_changed(server.receive(opening)[0], **fields))
        assert isinstance(client.error, ProtocolError)


def test_an_alteration_that_both_sides_would_accept_breaks_the_proof() -> None:
    """The one in the middle tells each side that the other speaks the same older version."""
    client, server = Handshake("client", SECRET, {}, version=2), _pair(version=1)[1]
    (challenge,) = server.receive(_changed(client.start()[0], version=1))
    (proof,) = client.receive(_changed(challenge, version=2))
    server.receive(proof)
    assert isinstance(server.error, AuthError)


def test_other_versions_and_digests_are_told_apart_from_wrong_secrets() -> None:
    for options, reason in (({"version": 7}, "version 7"), ({"digest_id": "wt9"}, "'wt9'")):
        client, server = _pair(**options)
        _run(client, server)
        assert isinstance(client.error, ProtocolError)
        assert reason in str(client.error)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xff" * 10, msgpack.packb({"t": "AuthOpen"}), msgpack.packb({"t": "AuthRefusal"})])
def test_nonsense_ends_the_handshake(payload: bytes) -> None:
    for handshake in _pair():
        handshake.start()
        handshake.receive(payload)
        assert isinstance(handshake.error, ProtocolError)
        assert handshake.receive(payload) == []


def test_nonces_have_one_size() -> None:
    server = _pair()[1]
    server.receive(_changed(_pair()[0].start()[0], nonce=b"short"))
    assert isinstance(server.error, ProtocolError)


def test_the_info_of_the_peer_waits_for_its_proof() -> None:
    client, server = _pair()
    (opening,) = client.start()
    server.receive(opening)
    server.receive(msgpack.packb({"t": "AuthInfo", "hello": {"who": "nobody"}}))
    assert isinstance(server.error, ProtocolError)
    assert server.peer_hello == {}


def test_a_hello_is_capped() -> None:
    Handshake("client", SECRET, {"x": "x" * 4000})
    for hello in ({"x": "x" * 4100}, {"x": object()}, {"x": b"x" * 5000}):
        with pytest.raises(ProtocolError):
            Handshake("client", SECRET, hello)


def test_a_stranger_is_believed_four_kibibytes_at_most() -> None:
    assert [handshake.max_frame_nbytes for handshake in _pair()] == [HANDSHAKE_CAP_NBYTES] * 2


def test_a_refusal_is_shown_without_control_characters() -> None:
    client = _pair()[0]
    client.start()
    client.receive(msgpack.packb({"t": "AuthRefusal", "code": "auth", "reason": "no\x1b[2J\n"}))
    assert "no?[2J?" in str(client.error)
