"""The race: several families pretrained under equal budgets, fine-tuned on the same tasks, and compared."""
