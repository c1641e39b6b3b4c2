"""Thread block clusters: on the CPU backend in each order, and on a GPU with the same inputs.

`cpu_kernels/cluster.cu` has the kernels.
"""

import re
from itertools import product

import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call, names_line

KERNELS = "cluster"
OPS = torch.ops.test_cluster
THREADS = 64


@pytest.fixture(autouse=True)
def has_clusters(request: pytest.FixtureRequest) -> None:
    """Skip tests that need a GPU with clusters on one without."""
    on_gpu = "gpu" in request.node.name and torch.cuda.is_available()
    if on_gpu and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters came with sm_90")


# ---------------------------------------------------------------- geometry

Extent = tuple[int, int, int]


def _places(grid: Extent, cluster: Extent) -> torch.Tensor:
    """Return the values that the kernel writes for each thread of the grid."""
    size = cluster[0] * cluster[1] * cluster[2]
    grid_of_clusters = [g // c for g, c in zip(grid, cluster, strict=True)]
    facts = []
    for z, y, x in product(range(grid[2]), range(grid[1]), range(grid[0])):
        block = (x, y, z)
        inside = [b % c for b, c in zip(block, cluster, strict=True)]
        index = [b // c for b, c in zip(block, cluster, strict=True)]
        rank = inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2])
        neighbour = (rank + 1) % size
        for t in range(THREADS):
            ptx = [rank, size, *inside, *cluster, *index, *grid_of_clusters]
            groups = [rank, size, rank * THREADS + t, size * THREADS, *inside, *cluster]
            groups += [cluster[0] * THREADS, inside[0] * THREADS + t]
            facts.append([*ptx, *groups, neighbour, neighbour])
    return torch.tensor(facts, dtype=torch.int32).reshape(-1, THREADS, len(facts[0]))


@pytest.mark.parametrize(
    ("grid", "cluster", "how"),
    [
        ((6, 1, 1), (2, 1, 1), 0),
        ((4, 6, 2), (2, 3, 1), 0),
        ((2, 2, 4), (1, 2, 2), 0),
        ((8, 1, 1), (8, 1, 1), 0),
        ((32, 1, 1), (16, 1, 1), 0),  # not portable
        ((3, 2, 1), (1, 1, 1), 0),
        ((4, 4, 2), (2, 2, 1), 1),
        ((3, 2, 4), (3, 1, 2), 2),
        ((3, 2, 2), (1, 1, 1), 3),
    ],
)
def test_place_of_a_block(call: Call, grid: Extent, cluster: Extent, how: int) -> None:
    assert call("place", torch.empty(0), *grid, *cluster, how).equal(_places(grid, cluster))


@pytest.mark.parametrize(
    ("grid", "cluster", "how", "why"),
    [
        (5, 2, 0, r"the grid \(5,1,1\) is not a multiple of the cluster \(2,1,1\), at .*\.cu:\d+"),
        (16, 16, 0, "16 blocks in a cluster are more than 8, .*NonPortableClusterSizeAllowed"),
        (34, 17, 0, r"the cluster \(17,1,1\) has more than 16 blocks"),
        (4, 0, 0, r"the cluster \(0,1,1\) has no blocks"),
        (4, 4, 1, r"clusters of \(4,1,1\), but the kernel has __cluster_dims__\(2,1,1\)"),
        (5, 2, 2, r"the grid \(5,1,1\) is not a multiple of the cluster \(2,1,1\)"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(
    operators: object, grid: int, cluster: int, how: int, why: str
) -> None:
    text = OPS.refused(torch.empty(0), grid, cluster, how)
    assert re.fullmatch(f"cudaErrorInvalidClusterSize: a kernel launch error.*: .*{why}.*", text)
    if torch.cuda.is_available():
        on_gpu = OPS.refused(torch.empty(0, device="cuda"), grid, cluster, how)
        assert on_gpu.split(":")[0] == text.split(":")[0]


def test_occupancy(operators: object, cpu_runtime: backend.Runtime) -> None:
    # 8 groups of 16 multiprocessors, 32 blocks each, 4 blocks per cluster
    assert OPS.occupancy(torch.empty(0), 0) == "8 1024"
    assert OPS.occupancy(torch.empty(0), 40_000) == "8 160"  # 5 blocks per multiprocessor
    cpu_runtime.set_model("8.6")
    with pytest.raises(RuntimeError, match="potential: operation not supported"):
        OPS.occupancy(torch.empty(0), 0)


# ---------------------------------------------------------------- each other's shared memory

WAYS = ["group", "mapped", "ld", "st", "st_async", "bulk", "atomic"]


PLACES = [place for place in product([1, 2, 8], WAYS) if place != (1, "st_async")]  # it needs two


@pytest.mark.parametrize("size, way", PLACES)
def test_shared_memory_of_the_next_block(call: Call, size: int, way: str) -> None:
    x = torch.arange(3 * size * THREADS, dtype=torch.int32)
    want = x.reshape(3, size, THREADS).roll(-1, 1).reshape(-1)
    assert call("shift", x, size, WAYS.index(way)).equal(want)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("size", [2, 4])
def test_one_block_feeds_the_others(call: Call, size: int, rows: int) -> None:
    x = torch.arange(3 * rows * THREADS, dtype=torch.int32).reshape(3, rows, THREADS)
    factors = torch.arange(1, size + 1, dtype=torch.int32)[:, None]
    assert call("hand_out", x, size).equal(x[:, :, None] * factors)


@pytest.mark.parametrize("size", [2, 8])
def test_histogram_over_a_cluster(call: Call, size: int) -> None:
    x = torch.randint(0, 1024, (5000,), generator=torch.Generator().manual_seed(3)).int()
    got = call("histogram", x, 1024, 4 * size, size)
    assert got.long().equal(torch.bincount(x, minlength=1024))


def test_threads_that_have_returned_are_not_waited_for(call: Call) -> None:
    assert call("early_return", torch.empty(0), 6).equal(torch.full((6,), 32, dtype=torch.int32))


def test_st_async_to_the_own_block(call: Call) -> None:
    assert call("async_store", torch.empty(0), 2).tolist() == [7, 7]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("cluster", [0, 1])
def test_st_async_needs_a_cluster_of_two_blocks(operators: object, cluster: int) -> None:
    with pytest.raises(RuntimeError, match=r"st\.async: needs a cluster of two blocks") as caught:
        OPS.async_store(torch.empty(0), cluster)
    assert names_line(str(caught.value), KERNELS, "st.async alone")


_BEFORE = r"the shared memory of block \(1,0,0\), rank 1 of the cluster, is used before that block "
_AFTER = "is used after that block has returned; cluster.sync.. at the end"
MISTAKES = {
    1: (_BEFORE + "has begun", "other block has not begun"),
    2: (r"st\.shared::cluster: " + _BEFORE, "store too early"),
    3: (r"memory of block \(0,0,0\), rank 0 of the cluster, " + _AFTER, "other block has returned"),
    4: ("mbarrier.* was not initialised, or its memory was overwritten", "arrival at a garbage"),
    5: (r"map_shared_rank\(\): rank 2; the cluster has 2 block\(s\), ranks 0 to 1", "rank out of"),
    6: ("is not in the shared memory of a block of this cluster", "global address"),
    7: (r"where 96 of the cluster's 128 threads have arrived", "half a block waits elsewhere"),
    8: ("this thread has arrived before and not waited since", "arrives twice"),
    9: ("this thread has not arrived at the cluster's barrier", "waits without arriving"),
    10: ("mbarrier.*: the shared memory of block .*" + _AFTER, "arrival at a returned block"),
    11: (r"cp\.async\.bulk\.shared::cluster: rank 5; the cluster has 2", "bulk copy to no block"),
    12: ("misaligned address: .* must be a multiple of 4", ""),
    13: ("where [01] of 2 arrivals have come", "too few remote arrivals"),
}


@pytest.mark.parametrize("which", MISTAKES)
def test_a_mistake_is_named(operators: object, which: int) -> None:
    message, marker = MISTAKES[which]
    with pytest.raises(RuntimeError, match=message) as caught:
        OPS.mistake(torch.empty(0), which)
    assert re.search(r"block \([01],0,0\) thread \(\d+,0,0\)", str(caught.value))
    assert not marker or names_line(str(caught.value), KERNELS, marker), str(caught.value)


def test_after_a_mistake_the_next_launch_works(operators: object) -> None:
    for which in (1, 3, 7, 10):  # in 10, threads poll while another fails
        with pytest.raises(RuntimeError):
            OPS.mistake(torch.empty(0), which)
        x = torch.arange(8 * THREADS, dtype=torch.int32)
        assert OPS.shift(x, 2, 0).equal(x.reshape(4, 2, THREADS).roll(-1, 1).reshape(-1))
