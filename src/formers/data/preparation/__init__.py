"""formers prepare: documents, cleaned and without duplicates, to a token store on disk."""
