"""Day 93: spatial clustering, a Gaussian mixture with a Potts field and a k-means++ start."""

if __name__ == "__main__":  # python days/day93/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day93

from common.day import COMPILE, Case, Library, Problem, Rung, Target, Tolerance, grid

from . import mixture
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Spatial clustering"
TEACHES = "A mixture model whose points listen to their neighbours, in one pass over the data"
TOPICS = ("clustering", "mixture", "EM", "Potts", "k-means++", "spatial", "Philox", "fusion")
SOURCE = "spatial_clustering.cu"
EXTRA_SOURCES = ("kmeans_plus_plus.cu", "mixture.py", "proof.py")
INTRODUCES = ("Gaussian mixture", "expectation-maximisation", "Potts field", "k-means++")

# (points, features, clusters, neighbours): around a tile of 128 points, 4 clusters and 4 features
SHAPES = [(129, 5, 3, 4), (300, 32, 16, 6), (128, 12, 7, 1), (1, 1, 1, 2), (259, 30, 10, 6)]
SHAPES += [(127, 16, 4, 0), (0, 8, 5, 6), (200, 3, 32, 5), (140, 128, 17, 3), (513, 8, 8, 3)]
SHAPES += [(64, 8, 12, 8)]  # whole packs of clusters, but fewer than a point's lanes have
WHY = "1e2 squares and a field are added before exp, which makes their error one of q"


PROBLEMS = (
    Problem(
        name="EM step",
        inputs=mixture.step_inputs,
        reference=mixture.em_step,
        pytorch=mixture.by_products,
        libraries=(
            COMPILE,
            Library("numpy", mixture.numpy_step, not_captured="NumPy computes on the CPU"),
        ),
        rungs=(
            Rung("spatial_em_v1_separate", "three kernels"),
            Rung("spatial_em_v2_tiles", "register tiles, two kernels"),
            Rung("spatial_em_v3_one_pass", "one pass over x", target=Target(0.5, "fp32")),
        ),
        cases=(
            *grid(SHAPES, ["float32"]),
            Case((2200, 3, 2, 3)),  # more rows of sums than threads add in parallel
            *(Case((200, 20, 6, 4), values=each) for each in ("nonfinite", "offset", "tiny")),
        ),
        bench=Case((1 << 20, 32, 16, mixture.HEXAGON)),
        bench_cpu=Case((2000, 32, 16, mixture.HEXAGON)),
        cost=mixture.step_cost,
        tolerance=Tolerance(ulps=16, factor=32, why=WHY),
    ),
    Problem(
        name="small numbers",
        inputs=mixture.small_inputs,
        reference=mixture.em_step,
        rungs=tuple(
            Rung(f"spatial_em_{version}", "variances far below 1")
            for version in ("v1_separate", "v2_tiles", "v3_one_pass")
        ),
        cases=(Case((200, 20, 6, 4)),),
        timed=False,
        tolerance=Tolerance(ulps=16, factor=32, why=WHY),
    ),
    Problem(
        name="many clusters",
        inputs=mixture.step_inputs,
        reference=mixture.em_step,
        rungs=(Rung("spatial_em_v1_separate", "any number"),),
        cases=(Case((70, 5, 33, 4)), Case((40, 130, 2, 3))),
        timed=False,
        tolerance=Tolerance(ulps=16, factor=32, why=WHY),
    ),
    Problem(
        name="too many for tiles",
        inputs=mixture.step_inputs,
        reference=mixture.em_step,
        rungs=(
            Rung("spatial_em_v2_tiles", "at most 32 clusters"),
            Rung("spatial_em_v3_one_pass", "at most 128 features"),
        ),
        cases=(Case((20, 4, 2, 3)),),
        refused=(Case((70, 5, 33, 4)), Case((40, 129, 2, 3))),
        timed=False,
        tolerance=Tolerance(ulps=16, factor=32, why=WHY),
    ),
    Problem(
        name="k-means++",
        inputs=mixture.seeding_inputs,
        reference=mixture.kmeans_plus_plus,
        pytorch=mixture.kmeans_plus_plus,
        rungs=(Rung("kmeans_plus_plus", "squared distances, prefix sums in double"),),
        cases=(
            *grid([(1025, 8, 6), (1, 1, 2), (40, 3, 9), (1024, 33, 2), (9, 0, 2)], ["float32"]),
            *(Case(shape, values="large") for shape in ((3000, 5, 4), (34_000, 1, 3))),
        ),
        refused=(Case((0, 3, 2)),),
        bench=Case((1 << 20, 32, 16)),
        bench_cpu=Case((5000, 32, 8)),
        cost=mixture.seeding_cost,
        outputs_exact=True,
    ),
)
