"""Turns become timelines: `forest` stores their tokens by common beginnings, `timeline` joins turns that go on."""
