"""The size of a model and the kind of processor, on which the memory that a run takes depends."""
