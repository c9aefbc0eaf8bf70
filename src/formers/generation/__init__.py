"""Text out of models: continuing, filling in."""
