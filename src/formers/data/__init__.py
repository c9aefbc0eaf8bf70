"""From documents to batches: readers, the token store, plans, packing, the loader."""
