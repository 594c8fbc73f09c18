"""From tasks to groups of episodes: `engine.run_groups`."""
