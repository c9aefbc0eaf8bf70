"""Text and tokenizers. Nothing in this room imports torch."""
