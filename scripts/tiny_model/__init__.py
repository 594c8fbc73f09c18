"""Parts of `scripts/build_tiny_model.py`: how the model that ships with ASTune was made."""
