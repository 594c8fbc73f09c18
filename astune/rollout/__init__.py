"""From tasks to groups of episodes: `group.run_groups`."""
