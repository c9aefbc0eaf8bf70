"""What a pretrained model is used for: heads, and (growing) the tasks themselves."""
