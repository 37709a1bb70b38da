"""HTTP connections: requests in turn, to a site that answers them."""
