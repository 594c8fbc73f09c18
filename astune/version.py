"""The version of ASTune."""

__version__ = "0.1.0"
