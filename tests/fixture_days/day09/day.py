"""A day whose day.py raises when it is run."""

TITLE = "Raises on import"
TEACHES = "That a broken day.py costs one day"
TOPICS = ("doubling",)
SOURCE = "twice.cu"

PROBLEMS = 1 / 0
