"""Names of backends and the classes behind them; nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from wtransport.backends.base import Backend, Capabilities, Unavailable
from wtransport.errors import ConfigError, TransportError, UnsupportedError, exhausted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wtransport.backends.driver import EngineDriver
    from wtransport.config import TransportConfig

GROUP = "wtransport.backends"
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "inproc": "wtransport.backends.inproc.backend:InprocBackend",
        "shm": "wtransport.backends.shm.backend:ShmBackend",
        "tcp": "wtransport.backends.tcp.backend:TcpBackend",
    }
)


class BackendRegistry:
    """The backends that one transport may use.

    Third parties add theirs with an entry point ``name = "module:Class"`` of the group
    ``wtransport.backends``.

    Args:
        entry_points: What is installed; None looks it up.

    Raises:
        ConfigError: If two distributions claim one name, or one claims a built-in's.
    """

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._targets = dict(BUILT_IN)
        self._classes: dict[str, type[Backend]] = {}
        if entry_points is None:
            try:
                entry_points = importlib.metadata.entry_points(group=GROUP)
            except OSError as error:
                if (none_left := exhausted(error, "look for installed backends")) is None:
                    raise
                raise none_left from error
        for entry_point in entry_points:
            self.add(entry_point.name, entry_point.value)

    @property
    def names(self) -> tuple[str, ...]:
        """Every known name, sorted."""
        return tuple(sorted(self._targets))

    def add(self, name: str, target: str) -> None:
        """Add a backend.

        Args:
            name: Its name; must equal the class's ``name``.
            target: ``module:Class``.

        Raises:
            ConfigError: If another target has the name already.
        """
        known = self._targets.setdefault(name, target)
        if known != target:
            raise ConfigError(
                f"two backends are called {name!r}: {known} and {target}",
                hint="uninstall one of the two distributions",
            )

    def load(self, name: str) -> type[Backend]:
        """Import the class behind *name*.

        Raises:
            ConfigError: If there is no such name, or no such class behind it.
            UnsupportedError: If importing it failed.
        """
        if name in self._classes:
            return self._classes[name]
        target = self._targets.get(name)
        if target is None:
            raise ConfigError(f"there is no backend {name!r}", hint=f"available: {', '.join(self.names)}")
        module, _, attribute = target.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ImportError as error:
            raise UnsupportedError(f"backend {name} cannot be imported: {error}", backend=name) from error
        if not (isinstance(found, type) and issubclass(found, Backend) and found.name == name):
            raise ConfigError(f"{target} is no backend called {name!r}")
        self._classes[name] = found
        return found

    def create(self, name: str, driver: EngineDriver, config: TransportConfig) -> Backend:
        """Make the backend *name* for one transport."""
        return self.load(name)(driver, config)

    def probe(self, driver: EngineDriver, config: TransportConfig) -> dict[str, Capabilities | Unavailable]:
        """Ask every backend what it can do here; one that fails to load is unavailable."""
        found: dict[str, Capabilities | Unavailable] = {}
        for name in self.names:
            try:
                found[name] = self.create(name, driver, config).probe()
            except TransportError as error:
                found[name] = Unavailable(error.message)
        return found
