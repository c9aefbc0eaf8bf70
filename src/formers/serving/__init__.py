"""The server: any formers model over HTTP, in the protocols of OpenAI, text-embeddings-inference and Hugging Face."""
