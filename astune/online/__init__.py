"""Online training: an agent in production gets better from what its users say."""
