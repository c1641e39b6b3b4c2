"""Day 48: batch normalisation."""

from common.day import Exercise

from .problems import problems

TITLE = "Batch normalisation"
TEACHES = "Statistics across the batch in two layouts, kept on the chip between two reads"
TOPICS = ("batch norm", "normalisation", "Welford", "channels_last", "cluster", "backward")
SOURCE = "batch_norm.cu"
EXTRA_SOURCES = ("batch_norm_fused.cu", "module.py")
INTRODUCES = ("running statistics", "channels last")

EXERCISE = Exercise(
    function="coefficients",
    task="Write it.",
    hints=("a", "b", "c"),
)

PROBLEMS = problems
