"""The model: loading, what family it is of, attention, adapters."""
