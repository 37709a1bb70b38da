"""Media: a client's images, recordings and films become pixels and samples; what they came in is nothing to it."""
