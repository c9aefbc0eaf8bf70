"""Checkpoints of a run: written whole or in shards, and read back."""
