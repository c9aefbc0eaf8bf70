"""Generation: continuing, translating, filling masks, augmenting; decoding, sampling and beam search."""
