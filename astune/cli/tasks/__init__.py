"""Commands that look at the tasks of a data set: `astune tasks` and `astune check-tasks`."""
