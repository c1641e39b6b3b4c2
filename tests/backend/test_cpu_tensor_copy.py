"""Tensor copies by TMA: on the CPU backend in each order, and on a GPU.

`cpu_kernels/tensor_copy.cu` has the kernels. The expected results are computed independently, with
index arithmetic over the whole box instead of the backend's pieces.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call, best_of_three, names_line

KERNELS = "tensor_copy"
OPS = torch.ops.test_tensor_copy
UNTOUCHED = 0xEE
NAN = {torch.float32: 0x7FF77FF7, torch.half: 0x7FF7, torch.bfloat16: 0x7FF7}  # an H200's


@pytest.fixture(autouse=True)
def has_copy_engine(request: pytest.FixtureRequest) -> None:
    """Skip tests that need a GPU with TMA on one without."""
    on_gpu = "gpu" in request.node.name and torch.cuda.is_available()
    if on_gpu and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("TMA came with sm_90")


@dataclass(frozen=True)
class Case:
    """A box of a tensor; dimensions in PyTorch's order.

    swizzle: 0 to 3; offset: where in shared memory the tile begins; padding: elements between rows.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: int = 0
    nan: bool = False
    every: tuple[int, ...] = ()
    offset: int = 0
    padding: int = 0
    steps: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.every or (1,) * len(self.shape))

    @property
    def counts(self) -> list[int]:
        """Return the number of indices of the box in each dimension."""
        return [math.ceil(b / s) for b, s in zip(self.box, self.steps, strict=True)]

    @property
    def box_bytes(self) -> int:
        return math.prod(self.counts) * self.dtype.itemsize

    def tensor(self, seed: int = 5) -> torch.Tensor:
        """Return small integers, exact in every dtype; the rows with their padding."""
        generator = torch.Generator().manual_seed(seed)
        shape = (*self.shape[:-1], self.shape[-1] + self.padding)
        x = torch.randint(0, 100, shape, generator=generator)
        return x.to(self.dtype)

    def indices(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the box's indices in each dimension, as a grid, and a mask of those in the
        tensor."""
        ranges = [
            start + step * torch.arange(count)
            for start, step, count in zip(self.at, self.steps, self.counts, strict=True)
        ]
        grid = list(torch.meshgrid(*ranges, indexing="ij"))
        return grid, self._inside(grid)

    def _inside(self, grid: list[torch.Tensor]) -> torch.Tensor:
        """Return a mask of these indices that are in the tensor."""
        inside = torch.ones_like(grid[0], dtype=torch.bool)
        for index, size in zip(grid, self.shape, strict=True):
            inside &= (index >= 0) & (index < size)
        return inside

    @property
    def tile_bytes(self) -> int:
        """Return the box's bytes of shared memory: with a swizzle, rows over its whole span."""
        row = self.box[-1] * self.dtype.itemsize
        return self.box_bytes // row * (16 << self.swizzle if self.swizzle else row)

    def places(self) -> torch.Tensor:
        """Return the position in shared memory of each byte of the box."""
        row = self.box[-1] * self.dtype.itemsize
        rows = torch.arange(self.box_bytes // row)[:, None] * (
            self.tile_bytes * row // self.box_bytes
        )
        place = (self.offset + rows + torch.arange(row)).reshape(-1)
        return place ^ ((place >> 7 & (1 << self.swizzle) - 1) << 4)

    def load(self, x: torch.Tensor, capacity: int) -> torch.Tensor:
        """Return all bytes of shared memory after the copy of the box."""
        grid, inside = self.indices()
        clamped = [i.clamp(0, size - 1) for i, size in zip(grid, self.shape, strict=True)]
        fill = NAN[self.dtype] if self.nan else 0
        word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[self.dtype.itemsize]
        values = torch.where(inside, x[tuple(clamped)].view(word), fill).contiguous()
        memory = torch.full((capacity,), UNTOUCHED, dtype=torch.uint8)
        memory[self.places()] = values.reshape(-1).view(torch.uint8)
        return memory

    def store(self, y: torch.Tensor, tile: torch.Tensor, add: bool) -> None:
        """Copy the contents of shared memory (uint8, from `offset` on) into the tensor."""
        grid, _ = self.indices()
        data = tile[self.places() - self.offset].view(self.dtype).reshape(self.counts)
        # A piece of 16 bytes is written completely if its first element is in the tensor.
        elements = 16 // self.dtype.itemsize
        starts = [*grid[:-1], grid[-1] // elements * elements]
        written = self._inside(starts)
        y.index_put_(tuple(i[written] for i in grid), data[written], accumulate=add)


F32, F16, BF16, U8 = torch.float32, torch.half, torch.bfloat16, torch.uint8
LOADS = [
    Case((100,), F32, (64,), (20,)),
    Case((100,), F16, (64,), (64,), padding=4),
    Case((256,), U8, (256,), (-16,)),
    # No swizzle: rows of any multiple of 16 bytes; inside, and beyond each side.
    Case((40, 64), F32, (8, 20), (3, 8)),
    Case((40, 64), BF16, (16, 40), (-3, -8)),
    Case((40, 64), BF16, (16, 40), (35, 40), nan=True),
    Case((40, 64), F32, (8, 20), (36, 52), nan=True),
    Case((40, 64), F16, (8, 24), (-9, 0), nan=True),
    Case((40, 64), U8, (8, 48), (33, 32)),
    Case((40, 50), BF16, (8, 64), (4, 0), padding=6),
    # Swizzles, whole patterns and more; a tile that begins within a pattern.
    *(Case((70, 128), BF16, (32, 8 << s), (5, 16), swizzle=s) for s in (1, 2, 3)),
    *(Case((70, 128), F32, (24, 4 << s), (60, 20), swizzle=s) for s in (1, 2, 3)),
    *(Case((70, 160), U8, (20, 16 << s), (-2, -16), swizzle=s, offset=128) for s in (1, 2, 3)),
    Case((70, 128), F16, (16, 64), (1, 8), swizzle=3, offset=896, nan=True),
    *(Case((40, 64), BF16, (9, 8 * i), (2, 8), swizzle=s) for s, i in ((2, 1), (3, 3), (3, 5))),
    # More dimensions.
    Case((5, 12, 64), BF16, (2, 4, 64), (3, 9, 8), swizzle=3),
    Case((5, 12, 32), F32, (3, 5, 8), (-1, 2, 28)),
    Case((3, 4, 6, 32), F16, (2, 3, 4, 16), (1, 2, -1, 8), swizzle=1),
    Case((3, 4, 6, 32), BF16, (1, 3, 6, 32), (2, 0, 0, 0), swizzle=2, nan=True),
    Case((2, 3, 4, 5, 16), F32, (2, 2, 2, 3, 8), (0, 2, 1, -1, 12)),
    # Every second and third index.
    Case((40, 64), F32, (8, 32), (3, 0), every=(2, 1)),
    Case((9, 20, 32), BF16, (4, 9, 32), (2, 5, 0), every=(3, 2, 1), swizzle=2),
]


def _name(case: Case) -> str:
    letters = str(case.dtype).removeprefix("torch.")
    extras = f"-swizzle{case.swizzle}" if case.swizzle else ""
    return f"{'x'.join(map(str, case.shape))}-{letters}-at{case.at}{extras}".replace(" ", "")


def _lists(case: Case) -> tuple[Sequence[int], ...]:
    return list(case.box), list(case.at), list(case.steps)


def _tile(case: Case) -> torch.Tensor:
    """Return shared memory with numbers for a store of the box, as bytes."""
    elements = (case.tile_bytes + 127) // 128 * 128 // case.dtype.itemsize
    tile = torch.randint(0, 100, (elements,), generator=torch.Generator().manual_seed(6))
    return tile.to(case.dtype).view(torch.uint8)


@pytest.mark.parametrize("case", LOADS, ids=_name)
def test_load(call: Call, case: Case) -> None:
    x = case.tensor()
    capacity = (case.offset + case.tile_bytes + 1023) // 1024 * 1024
    got = call(
        "load", x, *_lists(case), case.swizzle, case.nan, case.padding, case.offset, capacity
    )
    assert got.equal(case.load(x, capacity))


# A tensor of one dimension that ends within a piece of 16 bytes has no padding there to write over.
STORES = [
    case
    for case in LOADS
    if not case.nan
    and min(case.at) >= 0
    and (len(case.shape) > 1 or case.shape[0] * case.dtype.itemsize % 16 == 0)
]
STORES += [
    Case((40, 64), BF16, (16, 40), (30, 40)),
    Case((70, 160), U8, (20, 64), (60, 112), swizzle=2, offset=128),
    Case((3, 4, 6, 32), F16, (2, 3, 4, 16), (1, 2, 3, 24), swizzle=1),
    Case((2, 3, 4, 5, 16), F32, (2, 2, 2, 3, 8), (0, 2, 1, 3, 12)),
    Case((52,), torch.int32, (64,), (8,)),
]


@pytest.mark.parametrize("case", STORES, ids=_name)
def test_store(call: Call, case: Case) -> None:
    _store(call, case, add=False)


@pytest.mark.parametrize("case", [c for c in STORES if c.dtype != U8], ids=_name)
def test_add(call: Call, case: Case) -> None:
    _store(call, case, add=True)


def _store(call: Call, case: Case, *, add: bool) -> None:
    y, tile = case.tensor(), _tile(case)
    want = y.clone()
    case.store(want, tile, add)
    call("store", y, tile, *_lists(case), case.swizzle, case.padding, case.offset, add)
    assert y.equal(want)


@pytest.mark.parametrize("rows", [16, 48, 40])
@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_multicast(call: Call, cluster: int, rows: int) -> None:
    x = torch.arange(rows * 64, dtype=torch.int32).reshape(rows, 64)
    tiles = -(-rows // 16)
    padded = torch.zeros(tiles * 16, 64, dtype=torch.int32)
    padded[:rows] = x
    want = padded.reshape(tiles, 1, 16, 64).expand(tiles, cluster, 16, 64)
    assert call("multicast", x, cluster).equal(want)


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (33, 64), (100, 100), (7, 4)])
def test_loads_and_stores_in_a_pipeline(call: Call, rows: int, columns: int) -> None:
    x = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    assert call("doubled", x).equal(2 * x)


def test_flat_store(call: Call) -> None:
    x = torch.arange(1024, dtype=torch.int32)
    assert call("flat", x).equal(x)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 64, 64), (128, 64, 192), (256, 128, 320), (100, 72, 200), (1, 8, 8)]
)
def test_matmul_by_multicast_and_swizzled_tiles(
    call: Call, dtype: torch.dtype, m: int, n: int, k: int
) -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randint(-4, 5, (m, k), generator=generator).to(dtype)
    b = torch.randint(-4, 5, (k, n), generator=generator).to(dtype)
    assert call("matmul", a, b).long().equal(a.long() @ b.long())


# ---------------------------------------------------------------- maps that cannot be

MAPS = {
    "rank": (Case((2,) * 6, F32, (1,) * 6, (0,) * 6), r"sizes: 6 dimensions; allowed are 1 to 5"),
    "box": (Case((40, 64), F32, (8, 260), (0, 0)), r"box\[0\] is 260 elements; allowed are 1 to"),
    "no box": (
        Case((40, 64), F32, (0, 8), (0, 0)),
        r"box\[1\] is 0 elements; allowed are 1 to 256",
    ),
    "row": (
        Case((40, 64), F32, (8, 6), (0, 0)),
        r"box\[0\] is 6 elements, 24 bytes; .*of 16 bytes",
    ),
    "swizzle": (
        Case((40, 64), F32, (8, 64), (0, 0), swizzle=3),
        r"box\[0\] is 64 elements, 256 bytes; with this swizzle, at most 128",
    ),
    "stride": (
        Case((40, 50), BF16, (8, 8), (0, 0)),
        r"strides\[0\] is 100 bytes; .*multiple of 16",
    ),
    "every": (
        Case((40, 64), F32, (8, 32), (0, 0), every=(9, 1)),
        r"element_strides\[1\] is 9; allowed are 1 to 8",
    ),
    "every 0": (
        Case((40, 64), F32, (8, 32), (0, 0), every=(1, 2)),
        r"element_strides\[0\] is 2; allowed are 1 to 1",
    ),
    "nan": (Case((40, 64), U8, (8, 32), (0, 0), nan=True), "fill: NaN is for floating-point"),
    "empty": (Case((0, 64), F32, (8, 32), (0, 0)), r"not null|sizes\[1\] is 0; allowed are 1 to"),
    "count": (
        Case((40, 64), F32, (8, 8, 8), (0, 0), every=(1, 1)),
        "box: 3 values for a tensor of 2",
    ),
}


@pytest.mark.parametrize("what", MAPS)
def test_a_map_that_cannot_be_is_refused(operators: object, what: str) -> None:
    case, message = MAPS[what]
    arguments = (*_lists(case), case.swizzle, case.nan, 0, 0, 1024)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        with pytest.raises(ValueError, match=f"make_tensor_map: .*({message})"):
            OPS.load(case.tensor().to(device), *arguments)


def test_the_address_of_a_tensor_is_aligned(operators: object) -> None:
    x = torch.zeros(1000)[1:129].reshape(8, 16)
    with pytest.raises(ValueError, match="tensor: its address must be a multiple of 16"):
        OPS.load(x, [8, 16], [0, 0], [1, 1], 0, False, 0, 0, 1024)


# ---------------------------------------------------------------- mistakes

MISTAKES = {
    1: (r"cp\.async\.bulk\.tensor: misaligned: the destination .* of 128", "misaligned tile"),
    2: (r"cp\.async\.bulk\.tensor: 3 coordinate\(s\) for a tensor of 2", "too many coordinates"),
    3: ("this is not a tensor map that make_tensor_map made", "not a map"),
    4: ("the destination .* is not in the block's shared memory", "tile in global memory"),
    5: (
        "the mask 0x4 names no block, or a block that does not exist: the cluster has 2",
        "no such block",
    ),
    6: ("where 1 of 1 arrivals have come and 1024 bytes are pending", "more bytes than come"),
    7: ("the mbarrier at .* is not in the block's shared memory", "no mbarrier"),
    8: ("was not initialised", "first use"),
    9: (
        "begins at element 2 of dimension 0, byte 8: it must be a multiple",
        "begins within a piece",
    ),
    10: ("is used after that block has returned", "to a returned block"),
    13: (
        "the block returns while a transfer to its shared memory is in flight",
        "never waited for",
    ),
    20: ("the block returns while a store by TMA still reads", "returns too early"),
    21: ("the block returns while a store by TMA still reads", "never committed"),
    24: ("elements of one byte cannot be added", "bytes added"),
    25: ("misaligned: the source .* must be a multiple of 128", "misaligned source"),
    26: (r"cp\.async\.bulk\.global: misaligned: 64 bytes", "misaligned flat store"),
    28: ("a store begins at index -1 of dimension 1; it cannot be negative", "negative index"),
    27: ("the source .* is not in the block's shared memory", "source in global memory"),
}


@pytest.fixture
def runtime(operators: object, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the CPU backend with default settings, with the operators loaded."""
    return cpu_runtime


@pytest.mark.parametrize("which", MISTAKES)
def test_a_mistake_is_named(runtime: backend.Runtime, which: int) -> None:
    message, marker = MISTAKES[which]
    with pytest.raises(RuntimeError, match=message) as caught:
        OPS.mistake(torch.zeros(8, 32), which)
    assert re.search(r"block \([01],0,0\) thread \(\d+,0,0\)", str(caught.value))
    assert names_line(str(caught.value), KERNELS, marker), str(caught.value)


def test_copies_come_as_late_as_is_legal(runtime: backend.Runtime) -> None:
    x = torch.arange(256.0).reshape(8, 32)
    for order in ("forward", "reverse"):
        runtime.set_schedule(order)
        assert OPS.mistake(x, 12)[0].reshape(-1)[:128].equal(x.reshape(-1)[:128])
        assert OPS.mistake(x, 11)[0].reshape(-1)[:128].isnan().all(), "a tile read without a wait"
        assert OPS.mistake(x, 22)[0, 0, 0] == 7, "a tile overwritten before it was read"
        assert OPS.mistake(x, 23)[0, 0, 1] == 1, "a result overwritten by a store that was late"
    seen = set()
    for seed in range(12):
        runtime.set_schedule("random", seed)
        seen.add(OPS.mistake(x, 22)[0, 0, 0].item())
    assert seen == {1.0, 7.0}


def test_speed_is_of_the_right_order(runtime: backend.Runtime) -> None:
    """A limit with room for a busy machine; `-s` prints the figure."""
    a = torch.randn(512, 512).bfloat16()
    seconds = best_of_three(lambda: OPS.matmul(a, a))
    print(f"512³ by TMA, ldmatrix and mma: {1e3 * seconds:.0f} ms")
    assert seconds < 1
