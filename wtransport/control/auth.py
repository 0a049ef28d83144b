"""Mutual proof that both ends of a control connection know the secret; sans-IO.

::

    client                                     server
    AuthOpen(version, digest, nonce)      ->
                                          <-   AuthChallenge(version, digest, nonce)
    AuthProof(mac "client")               ->
                                          <-   AuthProof(mac "server"), AuthInfo(hello)
    AuthInfo(hello)                       ->

A mac is an HMAC-SHA256 over the role of who sends it and everything both sides said before: both
versions, both digest ids, both nonces. So a proof is worth nothing on another connection, nor sent
back to its maker, and nothing that was altered on the way can be agreed on. The client proves
first: a stranger that dials learns nothing to guess secrets against. What follows is not sealed: on
a network with somebody in the middle the connection needs TLS around it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wtransport.control.codec import Codec
from wtransport.control.schema import Cap, Range
from wtransport.errors import AuthError, ProtocolError, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.control.secret import Secret

PROTOCOL_VERSION = 1
DIGEST_ID = "wt1"
HANDSHAKE_CAP_NBYTES = 4096
HELLO_CAP_NBYTES = 4096
# Around a hello of the full size: the map, its two keys and the name.
INFO_CAP_NBYTES = HELLO_CAP_NBYTES + 64
_NONCE_NBYTES = 32
_MAC_NBYTES = 32

Role = Literal["client", "server"]


@dataclass(frozen=True)
class AuthOpen:
    """Client: what I speak, and a number never used before."""

    version: Annotated[int, Range(0, 0xFFFF)]
    digest: Annotated[str, Cap(32)]
    nonce: Annotated[bytes, Cap(_NONCE_NBYTES, _NONCE_NBYTES)]


@dataclass(frozen=True)
class AuthChallenge:
    """Server: the same of me."""

    version: Annotated[int, Range(0, 0xFFFF)]
    digest: Annotated[str, Cap(32)]
    nonce: Annotated[bytes, Cap(_NONCE_NBYTES, _NONCE_NBYTES)]


@dataclass(frozen=True)
class AuthProof:
    """Either side: I know the secret, and heard what you said."""

    mac: Annotated[bytes, Cap(_MAC_NBYTES, _MAC_NBYTES)]


@dataclass(frozen=True)
class AuthInfo:
    """Either side, after its proof: what its owner says about itself."""

    hello: dict[str, object]


@dataclass(frozen=True)
class AuthRefusal:
    """Server: no; sent so that the client need not guess whether to try again."""

    code: Literal["auth", "protocol"]
    reason: Annotated[str, Cap(256)]


_CODEC = Codec((AuthOpen, AuthChallenge, AuthProof, AuthInfo, AuthRefusal), max_frame_nbytes=INFO_CAP_NBYTES)


class Handshake:
    """One side of the handshake: payloads of frames in, payloads of frames out.

    Send what `start` returns, then what each `receive` returns, until `done` or `error`: a refused
    client is still told why, so send first, then look.

    Args:
        role: Who dialled is the ``client``.
        secret: The secret to prove, and to demand proof of.
        hello: Plain data for the other side, at most 4 KiB encoded.
        version: Protocol version spoken here.
        digest_id: The digest both sides must compute.

    Raises:
        ProtocolError: If *hello* is too long or not plain data.
    """

    def __init__(
        self,
        role: Role,
        secret: Secret,
        hello: Mapping[str, object],
        *,
        version: int = PROTOCOL_VERSION,
        digest_id: str = DIGEST_ID,
    ) -> None:
        self.done = False
        self.error: TransportError | None = None
        self.peer_hello: dict[str, object] = {}
        self._role = role
        self._key = secret.key
        self._mine = (version, digest_id, secrets.token_bytes(_NONCE_NBYTES))
        self._theirs = (0, "", b"")
        self._info = _CODEC.encode(AuthInfo(dict(hello)))
        if len(self._info) - len(_CODEC.encode(AuthInfo({}))) > HELLO_CAP_NBYTES:
            raise ProtocolError(f"a hello may have {HELLO_CAP_NBYTES} bytes, this one is longer")
        self._expected: type = AuthChallenge if role == "client" else AuthOpen

    @property
    def max_frame_nbytes(self) -> int:
        """Cap of the next payload: a side that has not proven itself is believed 4 KiB at most."""
        return INFO_CAP_NBYTES if self._expected is AuthInfo else HANDSHAKE_CAP_NBYTES

    def start(self) -> list[bytes]:
        """Return what to send first."""
        return [_CODEC.encode(AuthOpen(*self._mine))] if self._role == "client" else []

    def receive(self, payload: bytes) -> list[bytes]:
        """Take one payload; return what to send for it. Look at `error` and `done` afterwards."""
        if self.done or self.error is not None:
            return []
        try:
            message = _CODEC.decode(payload)
            if isinstance(message, AuthRefusal) and self._role == "client":
                raise _refused(message)
            if type(message) is not self._expected:
                raise ProtocolError(f"{type(message).__name__} where {self._expected.__name__} was expected")
            return self._advance(message)
        except AuthError as error:
            return self._fail(error, "auth")
        except ProtocolError as error:
            return self._fail(error, "protocol")

    def _fail(self, error: TransportError, code: Literal["auth", "protocol"]) -> list[bytes]:
        self.error = error.with_fields(phase="handshake")
        if self._role == "client":
            return []
        return [_CODEC.encode(AuthRefusal(code, error.message[:256]))]

    def _advance(self, message: Any) -> list[bytes]:
        if isinstance(message, AuthOpen | AuthChallenge):
            self._expected = AuthProof
            self._agree(message)
            if self._role == "server":
                return [_CODEC.encode(AuthChallenge(*self._mine))]
            return [_CODEC.encode(AuthProof(self._mac("client")))]
        if isinstance(message, AuthProof):
            self._expected = AuthInfo
            self._verify(message.mac)
            if self._role == "server":
                return [_CODEC.encode(AuthProof(self._mac("server"))), self._info]
            return [self._info]
        self.peer_hello = message.hello
        self.done = True
        return []

    def _agree(self, theirs: AuthOpen | AuthChallenge) -> None:
        self._theirs = (theirs.version, theirs.digest, theirs.nonce)
        version, digest_id, nonce = self._mine
        if theirs.version != version:
            raise ProtocolError(f"the {self._role} speaks protocol version {version}, its peer {theirs.version}")
        if theirs.digest != digest_id:
            raise ProtocolError(f"the {self._role} computes digest {digest_id!r}, its peer {theirs.digest!r}")
        if hmac.compare_digest(theirs.nonce, nonce):
            raise AuthError("the peer sent our own challenge back")

    def _verify(self, mac: bytes) -> None:
        peer: Role = "server" if self._role == "client" else "client"
        if not hmac.compare_digest(mac, self._mac(peer)):
            raise AuthError(
                f"the {peer} does not know the secret of the {self._role}",
                hint="give every member of the job the same secret",
            )

    def _mac(self, prover: Role) -> bytes:
        client, server = self._mine, self._theirs
        if self._role == "server":
            client, server = server, client
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (b"wtransport control", prover.encode(), *_parts(client), *_parts(server)):
            # Lengths in between: no two lists of parts may run together to the same bytes.
            mac.update(len(part).to_bytes(4, "big") + part)
        return mac.digest()


def _parts(said: tuple[int, str, bytes]) -> tuple[bytes, bytes, bytes]:
    version, digest_id, nonce = said
    return version.to_bytes(2, "big"), digest_id.encode(), nonce


def _refused(message: AuthRefusal) -> TransportError:
    reason = "".join(letter if letter.isprintable() else "?" for letter in message.reason)
    if message.code == "protocol":
        return ProtocolError(f"the server refused the connection: {reason}")
    return AuthError(
        f"the server refused the connection: {reason}",
        hint="give every member of the job the same secret",
    )
