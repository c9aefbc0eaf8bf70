"""Training: one step, one loop, evaluation against a baseline, reports."""
