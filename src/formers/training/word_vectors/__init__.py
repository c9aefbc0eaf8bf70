"""Word vectors: word2vec, fastText and GloVe."""
