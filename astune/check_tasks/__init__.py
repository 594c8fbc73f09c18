"""`astune check-tasks`: does the judge know right from wrong, task by task?"""
