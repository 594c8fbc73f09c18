"""`astune check-tasks`: right and wrong answers that judges are tried on, task by task."""
