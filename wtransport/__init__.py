"""Moves model weights one way, from trainers to generators, while both go on working."""
