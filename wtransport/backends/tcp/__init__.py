"""Striped TCP sockets between any two processes."""
