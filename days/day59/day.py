"""Day 59: CUDA graphs: a thousand small kernels in one launch."""

if __name__ == "__main__":  # python days/day59/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day59

from common.day import Case, Cost, Library, Problem, Rung, Target, grid

from .heat import (
    graphed,
    graphed_rings,
    replayed,
    show_freed_tensor,
    solve,
    solve_both,
    solve_rings,
)

TITLE = "CUDA graphs"
TEACHES = "Capture, graphs built by nodes, updates, programmatic dependent launch"
TOPICS = ("CUDA graphs", "stream capture", "graph update", "programmatic dependent launch")
SOURCE = "cuda_graphs.cu"
EXTRA_SOURCES = ("branches.cu",)
INTRODUCES = ("stream capture", "executable graph", "programmatic edge")

NOT_CAPTURED = "a graph cannot be launched while another one is captured"
# (n, steps, k in sixteenths): nothing to do, one step (the first node is the last), even and odd
# numbers of steps, rings of one and two, tails; the same graph with another k
SHAPES = [(0, 3, 4), (5, 0, 4), (1, 3, 4), (2, 2, 3), (255, 1, 4), (256, 2, 4), (257, 5, 4)]
SHAPES += [(257, 5, 7), (1000, 64, 3), (4096, 33, 0)]


# (steps, k in sixteenths, elements of each ring): one ring, several, empty ones, no steps
RINGS = [(3, 4, 5), (4, 3, 300, 1, 257), (1, 4, 0, 7), (3, 4, 0), (0, 4, 6, 9), (4, 5, 300, 1, 257)]


def rung(name, idea, captured=False, target=None):
    reason = "" if captured else NOT_CAPTURED
    return Rung(name, idea, target=target, host_timed=True, not_captured=reason)


def show(operators, device):
    """On a GPU: what a graph reads when its tensor was freed."""
    if device.type == "cuda":
        show_freed_tensor()


PROBLEMS = (
    Problem(
        name="heat in a ring",
        inputs=lambda case, draw: (draw(case.shape[0]), case.shape[1], case.shape[2] / 16),
        reference=solve,
        rungs=(
            rung("heat_v1_launches", "one launch per step", captured=True),
            rung("heat_v2_capture", "a captured graph, replayed"),
            rung("heat_v3_nodes", "a graph by nodes, two of them updated"),
            rung("heat_v4_dependent", "programmatic dependent launches", captured=True),
            rung(
                "heat_v5_dependent_nodes",
                "replayed, with programmatic edges",
                target=Target(3.0, "heat_v1_launches"),
            ),
        ),
        cases=(*grid(SHAPES, ["float32"]), Case((300, 7, 4), values="nonfinite")),
        refused=(Case((8, -1, 4)), Case((8, 2, 9))),
        bench=Case((4096, 1000, 4)),
        bench_cpu=Case((512, 10, 4)),
        cost=lambda case: Cost(
            bytes=8 * case.shape[0] * case.shape[1], flops=4 * case.shape[0] * case.shape[1]
        ),
        pytorch=solve,
        libraries=(Library("compile, CUDA graph", graphed),),
    ),
    Problem(
        name="heat in several rings",
        inputs=lambda case, draw: (
            draw(sum(case.shape[2:])),
            case.shape[2:],
            case.shape[0],
            case.shape[1] / 16,
        ),
        reference=solve_rings,
        rungs=(
            rung("heat_rings_v1_launches", "one launch per ring and step", captured=True),
            rung(
                "heat_rings_v2_branches",
                "a graph with a branch per ring",
                target=Target(3.0, "heat_rings_v1_launches"),
            ),
        ),
        cases=(*grid(RINGS, ["float32"]), Case((3, 4, 40, 300), values="nonfinite")),
        refused=(Case((-1, 4, 8)), Case((2, 9, 8, 8)), Case((2, 4, 8, -3))),
        bench=Case((125, 4, *(1024 * i for i in range(1, 9)))),
        bench_cpu=Case((5, 4, 512, 1024)),
        cost=lambda case: Cost(
            bytes=8 * case.shape[0] * sum(case.shape[2:]),
            flops=4 * case.shape[0] * sum(case.shape[2:]),
        ),
        pytorch=solve_rings,
        libraries=(Library("compile, CUDA graph", graphed_rings),),
    ),
    Problem(
        name="an array that is replaced after the capture",
        inputs=lambda case, draw: (draw(*case.shape), draw(*case.shape), 0.25),
        reference=replayed,
        rungs=(Rung("heat_replayed", "replayed with other contents", not_captured=NOT_CAPTURED),),
        cases=(*grid([(n,) for n in (1, 257, 1000)], ["float32"]),),
        timed=False,
    ),
    Problem(
        name="two callers of one graph",
        inputs=lambda case, draw: (draw(case.shape[0]), draw(case.shape[0]), case.shape[1], 0.25),
        reference=solve_both,
        rungs=(Rung("heat_in_two_streams", "v2 in two streams", not_captured=NOT_CAPTURED),),
        cases=(*grid([(1, 1), (257, 3), (1000, 4)], ["float32"]),),
        several_streams=True,
        timed=False,
    ),
)
