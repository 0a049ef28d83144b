"""The flight recorder: what every operation of a member did, readable after ``kill -9``."""
