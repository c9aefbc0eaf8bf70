"""Training: steps, the training loop, checkpoints, and the runs of `formers pretrain` and `formers finetune`."""
