"""From an agent's chat requests to exact tokens: rendering, recording, and merging turns into timelines."""
