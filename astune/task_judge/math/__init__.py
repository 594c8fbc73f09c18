"""Mathematics: find the final answer, compare it with the reference."""
