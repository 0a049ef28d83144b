"""wtransport: moves model weights from RL trainers to generators, asynchronously and one-sided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wtransport.config import TransportConfig
from wtransport.errors import (
    AuthError,
    BusyError,
    ClosedError,
    ConfigError,
    ConnectError,
    DeadlineError,
    FencedError,
    IntegrityError,
    JoinRefusedError,
    ManifestMismatchError,
    PeerLostError,
    ProtocolError,
    RegistrationError,
    ResourceError,
    SourceChangedError,
    StaleEpochError,
    TransportError,
    UnavailableError,
    UndeliveredError,
    UnsupportedError,
    VersionError,
    WeightsError,
    WithdrawnError,
)
from wtransport.session.outcomes import Receipt

if TYPE_CHECKING:
    from wtransport.handle import PutHandle
    from wtransport.transport import Transport, connect
    from wtransport.update import Update

# torch is imported with the first of these, not with the package: `import wtransport` stays cheap and changes nothing.
_LAZY = {"Transport": "transport", "connect": "transport", "PutHandle": "handle", "Update": "update"}

__all__ = [
    "AuthError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "ConnectError",
    "DeadlineError",
    "FencedError",
    "IntegrityError",
    "JoinRefusedError",
    "ManifestMismatchError",
    "PeerLostError",
    "ProtocolError",
    "PutHandle",
    "Receipt",
    "RegistrationError",
    "ResourceError",
    "SourceChangedError",
    "StaleEpochError",
    "Transport",
    "TransportConfig",
    "TransportError",
    "UnavailableError",
    "UndeliveredError",
    "UnsupportedError",
    "Update",
    "VersionError",
    "WeightsError",
    "WithdrawnError",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from wtransport.recorder.process import library_version

        return library_version()
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
