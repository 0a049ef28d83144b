"""Where weights lie: a source's own tensors, landing slots, snapshots, and the count of bytes."""
