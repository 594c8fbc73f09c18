"""From messages to the token ids of a prompt, and from sampled ids back to messages."""
