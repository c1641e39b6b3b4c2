"""libcu++ on the CPU backend: `cpu_kernels/libcudacxx.cu`, in every order, and on a GPU.

test_cpu_trace.py has the tracer's findings with atomics, barriers and pipelines.
"""

from typing import Any

import numpy as np
import pytest
import torch

from common.cpu import backend, features
from tests.kernel_files import Call, names_line

KERNELS = "libcudacxx"
LIKE = torch.zeros(1, dtype=torch.float64)


# ---------------------------------------------------------------- atomics


def _expected_operations(is_integer: bool) -> list[int]:
    """Return the return value and the stored value of each operation, in the order of the
    kernel."""
    pairs = [(5, 5), (5, 7), (7, 10), (10, 6), (6, 2), (2, 2), (2, 11), (11, 11)]
    pairs += [(1, 20), (0, 20), (20, 20), (40, 40), (42, 42), (41, 41)]
    if is_integer:
        value = 41
        for returned_old, op in (
            (True, lambda x: x & 0x2C),
            (True, lambda x: x | 0x13),
            (True, lambda x: x ^ 0x05),
            (True, lambda x: x + 1),
            (False, lambda x: x + 1),
            (True, lambda x: x - 1),
            (False, lambda x: x - 1),
            (False, lambda x: x & 0x1E),
            (False, lambda x: x | 0x41),
            (False, lambda x: x ^ 0x03),
        ):
            old, value = value, op(value)
            pairs.append((old if returned_old else value, value))
    return [number for pair in pairs for number in pair]


def test_every_operation(call: Call) -> None:
    out = call("operations", LIKE)
    for start, is_integer in ((64, True), (128, False), (192, True), (256, False)):
        want = _expected_operations(is_integer)
        assert out[start : start + len(want)].tolist() == want, start
    assert out[2:8].tolist() == [3, 4, 1, 2, 1, 9]


@pytest.mark.parametrize("blocks", [1, 33])
def test_counters(call: Call, blocks: int) -> None:
    out = torch.zeros(4, dtype=torch.int32)
    call("count", out, blocks)
    threads = 64 * blocks
    assert out[0] == threads
    assert out[1:2].view(torch.float32).item() == threads / 2
    assert out[2] == threads - 1
    assert out[3] == 2**31 - 1


@pytest.mark.parametrize("how", range(4))
def test_blocks_that_wait_for_each_other(call: Call, how: int) -> None:
    values, flags = (torch.zeros(n, dtype=torch.int32) for n in (40, 20))
    call("chain", values, flags, how, exact=False)  # trips differ
    assert values[:20].tolist() == list(range(1, 21))


@pytest.mark.parametrize("by_exchange", [False, True])
def test_locks(call: Call, by_exchange: bool) -> None:
    counter = torch.zeros(2, dtype=torch.int32)
    call("lock", counter, by_exchange)
    assert counter.tolist() == [8 * 4 * 4, 0]


@pytest.mark.parametrize("by_exchange", [False, True])
def test_locks_across_os_threads(
    operators: Any, cpu_runtime: backend.Runtime, by_exchange: bool
) -> None:
    cpu_runtime.set_threads(4)
    for _ in range(20):
        counter = torch.zeros(2, dtype=torch.int32)
        operators.lock(counter, by_exchange)
        assert counter[0] == 8 * 4 * 4


# ---------------------------------------------------------------- barriers and copies


@pytest.mark.parametrize("how", range(4))
def test_barrier(call: Call, how: int) -> None:
    for rounds in (1, 2, 5):
        want = torch.arange(96.0, dtype=torch.float32)
        for _ in range(rounds):
            want = want.flip(0) + 1
        assert call("hand_on", LIKE.float(), rounds, how).equal(want), rounds


def test_arrive_and_drop(call: Call) -> None:
    assert call("drop", LIKE).tolist() == [0, *range(32, 1, -1)]


@pytest.mark.parametrize("how", range(4))
@pytest.mark.parametrize("n", [4, 64, 252])
def test_memcpy_async(call: Call, n: int, how: int) -> None:
    if how == 3 and torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("TMA came with sm_90")
    x = torch.rand(3, n, generator=torch.Generator().manual_seed(n))
    assert call("turn_round", x, how).equal(x.flip(1))


@pytest.mark.parametrize("how", range(5))
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 11])
def test_pipeline(call: Call, tiles: int, how: int) -> None:
    x = torch.rand(tiles, 64, generator=torch.Generator().manual_seed(tiles)) + 1
    assert call("staged", x, how).equal(x.flip(1))


# ---------------------------------------------------------------- cuda::std


def test_vocabulary(call: Call) -> None:
    out = call("vocabulary", LIKE)
    eps = float(np.finfo(np.float32).eps)
    want = [9, 4.5, -3, 4, eps, 256, 4 + 31 + 8, 0x3F800000, 9, 2.5, 5, 24, 4, 11, 1]
    assert out[: len(want)].tolist() == want


@pytest.mark.parametrize("name", ["cuda/std/barrier", "cuda/latch", "cuda/ptx", "cuda/warp"])
def test_what_is_missing_is_refused_by_name(name: str) -> None:
    reason = features.missing_header(name)
    assert reason and f"<{name}>" in reason


# ---------------------------------------------------------------- mistakes

FAULTS = {
    "never_initialised": "was not initialised",
    "one_is_missing": "31 thread(s) wait in cuda::barrier::arrive_and_wait",
    "too_many_arrivals": "cuda::barrier::arrive: 3 arrivals, where 2 of this phase are left",
    "no_wait": "",
    "misaligned": "cuda::atomic_ref: misaligned address",
    "never_set": "32 thread(s) wait in cuda::atomic load",
    "uneven_size": "20 bytes are not a multiple of 16",
    "stage_never_released": "32 thread(s) wait in cuda::pipeline::producer_acquire",
}


@pytest.mark.parametrize("name", [name for name, message in FAULTS.items() if message])
def test_mistakes_are_explained(cpu_call: Call, cpu_runtime: backend.Runtime, name: str) -> None:
    cpu_runtime.set_spin_limit(0.2)
    with pytest.raises(RuntimeError) as caught:
        cpu_call("fault", torch.zeros(64), list(FAULTS).index(name))
    assert FAULTS[name] in str(caught.value)
    assert names_line(str(caught.value), KERNELS, name)


def test_a_copy_that_is_not_waited_for_is_late(
    operators: Any, cpu_runtime: backend.Runtime
) -> None:
    for order in ("forward", "reverse"):
        cpu_runtime.set_schedule(order)
        out = torch.ones(32)
        operators.fault(out, list(FAULTS).index("no_wait"))
        assert out.isnan().all()
