"""One file a subject: embeddings, masks, positions, attention, networks, norms, caches."""
