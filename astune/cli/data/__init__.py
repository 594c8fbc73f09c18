"""`astune data`: tasks made from a few, or from documents."""
