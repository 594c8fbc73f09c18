"""Tool calls: which were expected, which were made, which of them count."""
