"""Evaluation: likelihood and perplexity, the metrics of tasks, and baselines to compare with."""
