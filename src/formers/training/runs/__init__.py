"""Pretraining and fine-tuning runs, from settings and data to a trained model."""
