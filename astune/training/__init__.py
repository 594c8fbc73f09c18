"""The training loop and what it needs: which tasks a step takes, how they are played, what is kept."""
