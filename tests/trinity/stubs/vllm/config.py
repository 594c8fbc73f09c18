class ModelConfig:
    """A type in annotations only."""
