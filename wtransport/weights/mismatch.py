"""What differs between a generator's manifest and its trainers', gathered into one error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.errors import ManifestMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wtransport.weights.box import Box
    from wtransport.weights.manifest import Manifest, TensorMeta

_LISTED = 5
_PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "base_model.model.",
    "language_model.",
    "transformer.",
)


def check_sources(manifests: Sequence[Manifest], members: Sequence[Sequence[int]]) -> None:
    """Check that the sources agree with each other on the dtype and global shape of every name.

    Args:
        manifests: The distinct manifests.
        members: The sources that hold each of them.

    Raises:
        ManifestMismatchError: If they do not.
    """
    if len(manifests) == 1:
        return
    seen: dict[str, tuple[int, TensorMeta]] = {}
    found: list[tuple[str, str]] = []
    for index, manifest in enumerate(manifests):
        for meta in manifest.tensors:
            first, other = seen.setdefault(meta.name, (index, meta))
            if other.dtype != meta.dtype or other.shape != meta.shape:
                here, there = _rank(members[index]), _rank(members[first])
                found.append((meta.name, f"{_told(other)} at {there}, {_told(meta)} at {here}"))
    if found:
        raise ManifestMismatchError(
            f"the trainers disagree among themselves on {_listing(found)}",
            tensor=found[0][0],
            hint="every trainer rank must give a name the same dtype and global shape",
        )


def check_wanted(
    manifests: Sequence[Manifest],
    members: Sequence[Sequence[int]],
    wanted: Manifest,
    *,
    allow_extra: bool,
) -> None:
    """Check that names, dtypes, global shapes and ties of *wanted* are those of the sources.

    Args:
        manifests: The distinct manifests of the sources, which agree among themselves.
        members: The sources that hold each of them.
        wanted: What the generator wants.
        allow_extra: Accept names that only the sources have.

    Raises:
        ManifestMismatchError: If they are not.
    """
    if all(manifest == wanted for manifest in manifests) and manifests:
        return
    held: dict[str, TensorMeta] = {}
    for manifest in manifests:
        held = {**manifest.by_name, **held} if held else manifest.by_name
    missing = [meta.name for meta in wanted.tensors if meta.name not in held]
    extra = [] if allow_extra else sorted(name for name in held if name not in wanted.by_name)
    both = [(meta, held[meta.name]) for meta in wanted.tensors if meta.name in held]
    shapes = [(want.name, f"{want.shape} wanted, {have.shape} held") for want, have in both if want.shape != have.shape]
    dtypes = [(want.name, f"{want.dtype} wanted, {have.dtype} held") for want, have in both if want.dtype != have.dtype]
    kinds = (
        ("held by no trainer", [(name, "") for name in missing]),
        ("not wanted by the generator", [(name, "") for name in extra]),
        ("of another shape", shapes),
        ("of another dtype", dtypes),
        (
            "tied at the generator but not at a trainer",
            _broken_ties(manifests, members, wanted, held),
        ),
    )
    found = [f"{len(entries)} {kind}: {_listing(entries)}" for kind, entries in kinds if entries]
    if found:
        raise ManifestMismatchError(
            f"what the generator wants is not what the trainers hold: {'; '.join(found)}",
            tensor=next(entries[0][0] for _, entries in kinds if entries),
            hint=_hint(missing, [name for name in held if name not in wanted.by_name], extra, dtypes),
        )


def raise_uncovered(uncovered: Sequence[tuple[TensorMeta, Box]], members: Sequence[Sequence[int]]) -> None:
    """Raise for wanted boxes that no source holds.

    Raises:
        ManifestMismatchError: Always.
    """
    found = [(meta.name, f"{box} of {meta.shape}") for meta, box in uncovered]
    sources = sum(map(len, members))
    raise ManifestMismatchError(
        f"the {sources} trainers together do not hold all of {_listing(found)}",
        tensor=found[0][0],
        hint="all trainer ranks together must hold what a generator wants: is a rank missing?",
    )


def _broken_ties(
    manifests: Sequence[Manifest],
    members: Sequence[Sequence[int]],
    wanted: Manifest,
    held: dict[str, TensorMeta],
) -> list[tuple[str, str]]:
    found = []
    for names in wanted.aliases:
        if len(names) == 1:
            continue
        for index, manifest in enumerate(manifests):
            own = [manifest.by_name.get(name) for name in names if name in held]
            if any(own) and (None in own or len({meta.storage for meta in own if meta}) > 1):
                found.append((names[0], f"with {', '.join(names[1:_LISTED])} at {_rank(members[index])}"))
                break
    return found


def _hint(missing: Sequence[str], unwanted: Iterable[str], extra: Sequence[str], dtypes: Sequence[object]) -> str:
    left = set(unwanted)
    for prefix in _PREFIXES:
        if missing and all(prefix + name in left for name in missing):
            return f"the trainers' names are the generator's with {prefix!r} in front: rename one side"
        if missing and all(name.startswith(prefix) and name[len(prefix) :] in left for name in missing):
            return f"the generator's names are the trainers' with {prefix!r} in front: rename one side"
    if missing:
        return "put every wanted name, under the generator's names, or bind fewer"
    if extra:
        return "put only what the generators want, or allow extra names"
    if dtypes:
        return "nothing is cast on the way: convert one side first"
    return "bind and put the same model"


def _listing(entries: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{name} ({detail})" if detail else name for name, detail in entries[:_LISTED])
    return shown + (f" and {len(entries) - _LISTED} more" if len(entries) > _LISTED else "")


def _told(meta: TensorMeta) -> str:
    return f"{meta.dtype} {meta.shape}"


def _rank(members: Sequence[int]) -> str:
    return f"rank {members[0]}" + (f" and {len(members) - 1} more" if len(members) > 1 else "")
