"""Backends: what moves bytes between two members.

``base`` is the seam; nothing above this package knows a backend by name.
"""
