"""A page in the browser: predictions, attention and receptive fields of one's own images."""
