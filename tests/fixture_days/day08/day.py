"""A day that lacks TEACHES."""

TITLE = "Lacks metadata"
TOPICS = ("doubling",)
SOURCE = "twice.cu"
