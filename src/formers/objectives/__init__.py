"""Pretraining objectives: what is hidden, what is asked for. They know no model; they are handed one."""
