"""Hosts."""


class Host:
    """A host."""

    netns: int
