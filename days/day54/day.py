"""Day 54: matrix products by mma.sync, with a pipeline of copies."""

from common.day import Exercise

from . import products

TITLE = "GEMM with mma.sync"
TEACHES = "mma.sync, ldmatrix and a pipeline of cp.async"
TOPICS = ("GEMM", "mma.sync")
SOURCE = "gemm_mma_pipeline.cu"

PROBLEMS = products.problems
