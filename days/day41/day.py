"""Day 41: coalescing: sectors per request, predicted, counted and measured."""

if __name__ == "__main__":  # python days/day41/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day41

from dataclasses import replace

from common.day import Case, Cost, Problem, Rung, Target, grid, streamed

from . import sectors

TITLE = "Coalescing"
TEACHES = "Sectors per request of strides, misaligned starts, AoS, SoA and float4; a swap in place"
TOPICS = ("coalescing", "sectors", "stride", "AoS", "SoA", "float4", "alignment", "swap")
SOURCE = "coalescing.cu"
EXTRA_SOURCES = ("bulk_copies.cu",)
INTRODUCES = ("array of structures", "structure of arrays")


def strided_inputs(case, draw):
    n, stride = case.shape
    return draw(n), stride


def strided_reference(x, stride):
    return x[::stride].clone()


def strided_cost(case):
    n, stride = case.shape
    return Cost(bytes=8 * -(-n // stride))  # what is requested: 4 bytes read, 4 written


STRIDED = Problem(
    name="strided, any stride",
    inputs=strided_inputs,
    reference=strided_reference,
    rungs=(Rung("strided", "one thread per element of y"),),
    cases=grid(
        [(1, 1), (255, 1), (256, 1), (257, 1), (1000, 3), (1025, 4), (8193, 8), (9000, 32), (5, 9)],
        ["float32"],
    )
    + grid([(0, 1), (0, 7)], ["float32"]),
    timed=False,
    outputs_exact=True,
)


def strided_by(stride):
    """The timed problem of one stride. All strides pass over an array of the same size."""
    return Problem(
        name=f"stride {stride}",
        inputs=strided_inputs,
        reference=strided_reference,
        rungs=(Rung("strided", f"one element in {stride}" if stride > 1 else "a copy"),),
        cases=(Case((1027, stride)),),
        bench=Case((1 << 28, stride)),
        bench_cpu=Case((1 << 12, stride)),
        cost=strided_cost,
        pytorch=strided_reference,
        outputs_exact=True,
    )


def shifted_inputs(case, draw):
    count, offset, more = case.shape
    return draw(offset + count + more), offset, count


def shifted_reference(x, offset, count):
    return x[offset : offset + count].clone()


# (elements of y, where they begin in x, elements of x after them)
ONE_BLOCK = [(0, 3, 1), (0, 0, 0), (1, 0, 0), (1, 3, 0), (2, 1, 0), (3, 2, 1), (4, 1, 0), (5, 7, 2)]
MORE_BLOCKS = [
    *((127, 1, 0), (128, 2, 0), (129, 3, 0), (1024, 0, 0), (1023, 1, 1), (1025, 6, 5)),
    *((4100, 9, 3), (2050, 11, 0)),
]

SHIFTED = Problem(
    name="misaligned start",
    inputs=shifted_inputs,
    reference=shifted_reference,
    rungs=(
        Rung("shifted_v1_scalar", "five sectors instead of four"),
        Rung(
            "shifted_v2_packs", "aligned packs, shifted in registers", target=Target(0.97, "copy")
        ),
    ),
    cases=grid([*ONE_BLOCK, *MORE_BLOCKS], ["float32"]),
    bench=Case((1 << 28, 1, 31)),
    bench_cpu=Case((1 << 12, 1, 31)),
    cost=lambda case: Cost(bytes=8 * case.shape[0]),
    pytorch=shifted_reference,
    outputs_exact=True,
)

DT = 0.125


def particle_inputs(case, draw):
    return draw(*case.shape), DT


def aos_reference(state, dt):
    following = state.clone()
    following[:, :3] += dt * state[:, 4:7]
    return following


def soa_reference(state, dt):
    return aos_reference(state.T, dt).T.contiguous()


def aos_pytorch(state, dt):
    """A copy, then one operator on a strided view."""
    following = state.clone()
    following[:, :3].add_(state[:, 4:7], alpha=dt)
    return following


def soa_pytorch(state, dt):
    following = state.clone()
    following[:3].add_(state[4:7], alpha=dt)
    return following


COUNTS = (1, 15, 16, 17, 127, 128, 129, 255, 257, 1000, 0)
BEST = Target(0.97, "copy")

AOS = Problem(
    name="particles, AoS",
    inputs=particle_inputs,
    reference=aos_reference,
    rungs=(
        Rung("particles_v1_aos_scalar", "8 loads of 4 bytes per particle"),
        Rung("particles_v2_aos_float4", "2 loads of 16 bytes per particle"),
        Rung("particles_v3_aos_lane_pairs", "2 lanes per particle", target=BEST),
    ),
    cases=(
        *grid([(n, 8) for n in COUNTS], ["float32"]),
        Case((300, 8), values="nonfinite"),
    ),
    bench=Case((1 << 25, 8)),
    bench_cpu=Case((1 << 9, 8)),
    cost=streamed(2, 1),
    pytorch=aos_pytorch,
)

SOA = Problem(
    name="particles, SoA",
    inputs=particle_inputs,
    reference=soa_reference,
    rungs=(
        Rung("particles_v4_soa", "one array per field"),
        Rung("particles_v5_bulk", "a piece of each field per block", target=BEST),
    ),
    cases=(
        *grid([(8, n) for n in (*COUNTS, 2048, 4100)], ["float32"]),  # around pieces of 2048
        Case((8, 300), values="nonfinite"),
    ),
    bench=Case((8, 1 << 25)),
    bench_cpu=Case((8, 1 << 9)),
    cost=streamed(2, 1),
    pytorch=soa_pytorch,
)


def swap_reference(x, y):
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


SWAP = Problem(
    name="swap",
    inputs=lambda case, draw: (draw(*case.shape), draw(*case.shape)),
    reference=swap_reference,
    rungs=(
        Rung("swap_v1_scalar", "4 bytes per access"),
        Rung("swap_v2_float4", "16 bytes per access"),
        Rung("swap_v3_bulk", "a piece of each array per block", target=BEST),
    ),
    cases=grid(
        [
            *((1,), (2,), (3,), (4,), (255,), (256,), (257,), (1023,), (1024,), (1027,), (0,)),
            *((3, 5), (4096,), (4097,), (8203,)),  # around pieces of 4096
        ],
        ["float32"],
    ),
    bench=Case((1 << 28,)),
    bench_cpu=Case((1 << 11,)),
    cost=streamed(4, 0),
    pytorch=swap_reference,
    outputs_exact=True,
)


def parts_of_one_array(case, draw):
    """n elements each, of which y's begin `distance` after x's, or before."""
    n, distance = case.shape
    memory = draw(n + abs(distance))
    first, second = memory[:n], memory[abs(distance) :]
    return (first, second) if distance >= 0 else (second, first)


PARTS = replace(
    SWAP,
    name="swap of parts of one array",
    inputs=parts_of_one_array,
    rungs=tuple(replace(rung, target=None) for rung in SWAP.rungs),
    cases=grid([(8, 8), (8, -8), (12, 16), (5, -5)], ["float32"]),
    refused=grid([(8, 7), (8, -7), (8, 4), (8, -1), (8, 0)], ["float32"]),
    timed=False,
)

STRIDES = tuple(strided_by(stride) for stride in sectors.STRIDES)
PROBLEMS = (STRIDED, *STRIDES, SHIFTED, AOS, SOA, SWAP, PARTS)


def show(operators, device):
    """Sectors per request in three columns, which have to agree."""
    return sectors.print_sectors(PROBLEMS, device)
