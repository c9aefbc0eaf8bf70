"""Looking inside a model: attention weights, hidden states, embeddings and neighbours."""
