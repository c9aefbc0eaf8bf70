"""Training tokenizers: byte pair encoding, WordPiece, Unigram and words, deterministic and in bounded memory."""
