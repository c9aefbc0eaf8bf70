"""Looking inside: what models attend to, and pictures of it."""
