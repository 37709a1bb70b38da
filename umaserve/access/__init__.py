"""Who may come in: names, keys, and attempts at them."""
