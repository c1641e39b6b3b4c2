"""A day that needs a feature that no machine has."""

from common.day import Skip

TITLE = "Skips"
TEACHES = "That SKIP is not PASS"
TOPICS = ("doubling",)
SOURCE = "twice.cu"

raise Skip("needs the package moonbeam: python -m pip install moonbeam")
