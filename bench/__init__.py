"""Benchmarks: every figure is a ratio against a limit measured in the same run, with the bytes verified."""
