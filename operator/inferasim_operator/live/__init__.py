"""Live figures against predictions: read, compared only when the load is comparable, exported or explained."""
