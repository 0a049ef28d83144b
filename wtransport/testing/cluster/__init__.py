"""Jobs of real processes on one machine: what tests and benchmarks kill, stop, cut off and replace."""
