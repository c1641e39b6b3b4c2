"""Day 92: 3D Gaussian splatting: project, sort and blend Gaussians."""

if __name__ == "__main__":  # python days/day92/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day92

from dataclasses import replace

from common.day import COMPILE, Case, Library, Problem, Rung, Target, Tolerance, grid

from . import splatting
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "3D Gaussian splatting"
TEACHES = (
    "A picture of millions of soft ellipsoids: sorted once by depth, then by tile, then blended"
)
TOPICS = ("3D", "graphics", "Gaussian splatting", "rendering", "radix sort", "picture")
SOURCE = "gaussian_splat.cu"
EXTRA_SOURCES = ("project.cu", "proof.py", "scene.py", "splatting.py")
INTRODUCES = ("Gaussian splatting", "splat", "alpha blending", "transmittance")

# (Gaussians, width, height)
SCENES = [(257, 100, 70), (1, 16, 16), (8, 33, 300), (0, 20, 20), (513, 640, 480)]
# (splats, width, height, size in pixels): around a tile, a block of 256 splats, a digit of the tile
SHAPES = [(300, 70, 50, 3), (257, 16, 17, 2), (1, 1, 1, 1), (0, 33, 20, 2), (20, 64, 47, 40)]
SHAPES += [(256, 48, 15, 8), (900, 18, 16, 3)]  # the last: a list of several batches
LISTS = [*SHAPES, (700, 300, 290, 2), (11, 5000, 4000, 300)]
BENCH = (1 << 18, 1920, 1080, 8)

WAITS = "the host waits for the number of pairs"


def waiting(name, idea):
    return Rung(name, idea, not_captured=WAITS)


def lists_problem(name, reference, *rungs, refused=()):
    return Problem(
        name=name,
        inputs=splatting.list_inputs,
        reference=reference,
        pytorch=reference,
        pytorch_not_captured=WAITS,
        rungs=rungs,
        cases=grid(LISTS, ["float32"]),
        refused=refused,
        bench=Case(BENCH),
        bench_cpu=Case((500, 160, 120, 3)),
        cost=splatting.lists_cost,
        outputs_exact=True,
    )


PIXELS = Tolerance(
    ulps=16, factor=16, why="q is a difference of products, and its error one of every layer behind"
)

PROBLEMS = (
    Problem(
        name="project",
        inputs=splatting.scene_inputs,
        reference=splatting.project,
        pytorch=splatting.own_project,
        libraries=(COMPILE,),
        rungs=(Rung("splat_project", "one thread per Gaussian"),),
        cases=(
            *grid(SCENES, ["float32"]),
            Case((300, 64, 48), values="nonfinite"),
            Case((300, 64, 48), values="large"),
        ),
        refused=(Case((5, 32769, 10)), Case((5, 10, 32769)), Case((5, 10, 0))),
        bench=Case((1 << 20, 1920, 1080)),
        bench_cpu=Case((2000, 320, 240)),
        cost=splatting.project_cost,
        tolerance=Tolerance(ulps=16, factor=16, why="sums of products of either sign, and 1 / z"),
    ),
    lists_problem(
        "tile lists",
        splatting.lists,
        waiting("lists_v1_wide_keys", "64-bit keys"),
        waiting("lists_v2_depth_first", "depth, then tile"),
        refused=(
            Case((70_000, 2816, 2816, 1_000_000)),
            Case((5, 0, 10, 1)),
            Case((5, 9, 40_000, 1)),
        ),
    ),
    lists_problem(
        "tile lists by ellipse",
        splatting.ellipse_lists,
        waiting("lists_v3_ellipse", "no tile without a pixel"),
    ),
    Problem(
        name="picture",
        inputs=splatting.picture_inputs,
        reference=splatting.picture,
        pytorch=splatting.own_picture,
        pytorch_not_captured=WAITS,
        libraries=(Library("compile", splatting.compiled_picture, not_captured=WAITS),),
        rivals=(Library("gsplat", splatting.by_gsplat, not_captured=WAITS),),
        rungs=(
            Rung("splat_v1_all", "one thread per pixel, all splats"),
            waiting("splat_v2_lists", "a list per tile"),
            waiting("splat_v3_staged", "records in shared memory"),
            waiting("splat_v4_ellipse", "shorter lists"),
            replace(
                waiting("splat_v5_rows", "four pixels per thread"), target=Target(1.0, "gsplat")
            ),
        ),
        cases=grid(SHAPES, ["float32"]),
        bench=Case(BENCH),
        bench_cpu=Case((150, 64, 48, 3)),
        cost=splatting.picture_cost,
        tolerance=PIXELS,
    ),
)
