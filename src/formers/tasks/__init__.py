"""Tasks: reading and encoding examples (table, examples, encoded examples), and the verbs of fine-tuned models."""
