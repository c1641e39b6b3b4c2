"""The CPU backend: every CUDA feature that it has, every fault that it names, and its speed.

`cpu_kernels/features.cu` uses each feature once, on a GPU too; `cpu_kernels/faults.cu` makes each
mistake once.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.base import toolchain
from common.base.paths import ROOT
from common.cpu import backend, features
from common.cpu import libraries as shared
from tests.kernel_files import Call, Libraries, source
from tests.progress import finish

KERNELS = "features"
OPS = torch.ops.test_features
LIKE = torch.zeros(1)


@pytest.fixture
def runtime(libraries: Libraries, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the CPU backend with default settings, and load the operators of both files."""
    for name in ("features", "faults"):
        libraries.operators(name)
    return cpu_runtime


# ---------------------------------------------------------------- features


def test_launches_of_every_form(call: Call) -> None:
    out = torch.zeros(4)
    call("launch_forms", out)
    assert out.tolist() == [1085.0] * 4


def test_indices_of_a_3d_grid(call: Call) -> None:
    blocks, threads = torch.arange(24)[:, None], torch.arange(30)[None, :]
    assert torch.equal(call("indices", LIKE), (blocks * 1000 + threads).int())


def test_static_shared_memory_in_every_form(call: Call) -> None:
    t = torch.arange(32)
    row = 31 - t  # read by by_copy, plus one since every thread has added it
    want = (row + 1 + 3) + row + row + 5 + 1000 + 10000 + 32 * 100000
    assert torch.equal(call("shared_forms", LIKE), want.float())


@pytest.mark.parametrize("n", [1, 33, 1024])
def test_two_arrays_in_dynamic_shared_memory(call: Call, n: int) -> None:
    assert torch.equal(call("dynamic_shared", LIKE, n), torch.arange(n).flip(0).float())


def test_rows_in_dynamic_shared_memory(call: Call) -> None:
    want = (torch.arange(4) * 10)[:, None] + torch.arange(8)
    assert torch.equal(call("dynamic_rows", LIKE), want.flip(0).float())


def test_shared_memory_is_poisoned(cpu_call: Call) -> None:
    assert cpu_call("poison", LIKE).isnan().all()


@pytest.mark.parametrize("n", [1, 31, 100, 256])
def test_barriers_count_threads_that_returned(call: Call, n: int) -> None:
    count = (n + 2) // 3
    want = count * 10000 + 1000 + 10  # not_all is false: thread 0 is there
    assert call("barriers", LIKE, n).tolist() == [want] * n


SHUFFLED = {
    "uint8": torch.arange(64, dtype=torch.uint8),
    "half": torch.randn(64).half(),
    "bfloat16": torch.randn(64).bfloat16(),
    "int32": torch.arange(64, dtype=torch.int32),
    "int64": torch.arange(64) << 40,
    "float64": torch.randn(64, dtype=torch.float64),
    "float32": torch.randn(64),
    "half2": torch.arange(128, dtype=torch.int16).reshape(64, 2),
}


def _shuffle_source(which: int, argument: int, width: int) -> torch.Tensor:
    lanes = torch.arange(32)
    segment = lanes // width * width
    if which == 0:
        return segment + argument % width
    source = [lanes, lanes - argument, lanes + argument, lanes ^ argument][which]
    inside = source >= segment if which == 1 else source < segment + width
    return torch.where(inside, source, lanes)


@pytest.mark.parametrize("kind", SHUFFLED)
def test_shuffles(call: Call, kind: str) -> None:
    x = SHUFFLED[kind]
    for which in range(4):
        for width in (32, 16, 4):
            for argument in (0, 1, 3, 17):
                source = _shuffle_source(which, argument, width)
                want = x[torch.cat([source, source + 32])]
                got = call("shuffle", x, which, argument, width)
                assert torch.equal(got, want), (which, width, argument)


def test_votes_match_and_reductions(call: Call) -> None:
    x = torch.randint(0, 50, (64,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    got = call("votes", x).numpy().view(np.uint32)
    for warp in range(2):
        v = x[warp * 32 : warp * 32 + 32].tolist()
        rows = got[:, warp * 32 : warp * 32 + 32].tolist()

        def lanes(predicate: Callable[[int], bool], values: list[int] = v) -> int:
            return sum(1 << i for i, value in enumerate(values) if predicate(value))

        full = 0xFFFFFFFF
        for lane, value in enumerate(v):
            column = [row[lane] for row in rows]
            same = lanes(lambda other, value=value: other % 4 == value % 4)
            want = [lanes(lambda a: a % 2 == 1), int(7 in v), 1, same, full, 1, 0, sum(v)]
            want += [-max(v) & full, -min(v) & full, min(v), max(v)]
            want += [int(np.bitwise_and.reduce(np.array(v) | 8)), int(np.bitwise_or.reduce(v))]
            want += [int(np.bitwise_xor.reduce(v))]
            assert column == want


def test_activemask_of_diverged_lanes(call: Call) -> None:
    counter = torch.zeros(1, dtype=torch.int32)
    got = call("diverge", counter).numpy().view(np.uint32)
    ones = sum(1 << i for i in range(32) if i % 4 == 1)
    even = sum(1 << i for i in range(32) if i % 2 == 0)
    assert all(int(got[t]) == (ones if t % 4 == 1 else even) for t in range(64))
    assert counter.item() == 16


def test_atomics(call: Call) -> None:
    call("atomics", LIKE)


def test_threads_that_wait_for_each_other(call: Call) -> None:
    out = call("waits", torch.zeros(64, dtype=torch.int32))
    assert out[1].item() == 16 * 64  # every thread held the lock once
    assert out[40:60].tolist() == list(range(1, 21))  # each block after the one before
    assert out[3].item() == 1


def test_loops_that_wait_and_count(call: Call) -> None:
    out = call("wait_loops", torch.zeros(64, dtype=torch.int32))
    assert out[32:56].tolist() == list(range(1, 25))  # each block after the one before


def test_vectors_and_constant_memory(call: Call) -> None:
    x = torch.randn(1000, 4)
    want = x * torch.tensor([1.0, 2.0, 3.0, 4.0])
    want[:, 3] += 3
    got = call("vectors", x, exact=False)
    # device_counter rises to 4 when element 0 is done, so some may see 4 instead of 3.
    assert torch.allclose(got[:, :3], want[:, :3])
    assert ((got[:, 3] - want[:, 3]).round().abs() <= 1).all()


def test_mathematical_functions(call: Call) -> None:
    x = torch.linspace(0.1, 4.0, 64)
    d = x.double()
    i = torch.arange(64)
    want = [
        *(d.exp(), d.rsqrt(), d.exp2(), 1 / d, (d - 1).clamp(0, 1), d * d + 1, d.erf(), d.tanh()),
        *(d.log(), d**1.5, d.sin(), (d * torch.pi).sin(), (d * torch.pi).cos()),
        *(torch.special.ndtr(d), d.clamp(max=1) + d.clamp(min=2), d.clamp(max=1) + d.clamp(min=2)),
        i.clamp(max=3) + i.clamp(min=5) + 3.0,
        *(d.round() + d.trunc() + d.ceil(), 3 * d, d ** (-1 / 3), d.log1p(), 10**d),
    ]
    # A GPU's fast functions (__sinf, __logf, __powf) are good to about 2^-21.
    rtol, atol = (1e-6, 3e-7) if call.device == "cpu" else (4e-6, 1e-6)
    got = call("math", x, exact=False)
    for row, expected in enumerate(want):
        torch.testing.assert_close(got[row].double(), expected.double(), rtol=rtol, atol=atol)


def test_bit_intrinsics(call: Call) -> None:
    assert call("bits", LIKE).item() == 0


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_half_precision(call: Call, dtype: torch.dtype) -> None:
    x = torch.linspace(0.25, 2.0, 64).to(dtype)
    d = x.double()
    want = [x + x * x, d * d + d, d.exp(), d.sqrt(), d.tanh(), 1 / d, d.clamp(min=1.5)]
    want.append(torch.where(d > 1, d, -d))
    ulps = 1 if call.device == "cpu" else 2  # nvcc may contract x + x·x
    got = call("half_math", x, exact=False)
    for row, expected in enumerate(want):
        torch.testing.assert_close(
            got[row], expected.to(dtype), rtol=ulps * torch.finfo(dtype).eps, atol=0
        )


def test_language(call: Call) -> None:
    got = call("language", LIKE).tolist()
    assert got[:11] == [34, 34, 34, 6.5, 4, 4, 9, 8, 16, 1, 127]
    assert got[11:] == [0, 3, 6, 9, 3, 4, 5, 6, 0]


def test_printf_keeps_blocks_and_lines_in_order(
    runtime: backend.Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    OPS.print(LIKE, 5)
    want = "".join(
        f"block {b} thread  0: hello 0.50\nblock {b} end of block {b}\n" for b in range(5)
    )
    assert capfd.readouterr().out == want


def test_launches_that_a_gpu_refuses(call: Call) -> None:
    got = call("launch_errors", LIKE, exact=False).tolist()
    value, configuration, resources = 1, 9, 701  # cudaErrorInvalidValue, …
    want = [configuration] * 5 + [resources, value, value]
    want += [0, 0, 0, 1, value, value, 0, value]
    if call.device == "cuda":  # the code differs between versions of CUDA
        got, want = [code != 0 for code in got], [code != 0 for code in want]
    assert got == want


def test_runtime_api(call: Call) -> None:
    call("runtime_api", LIKE)


def test_the_runtime_defines_what_the_rewriter_lets_pass() -> None:
    names = "\n".join(_defined(shared.build_runtime(toolchain.detect("cpu"))))
    defined = set(re.findall(r"\bT cudacpu_(cuda[A-Z]\w*)", names))
    # These are templates in a header.
    templates = {"cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchCooperativeKernel"}
    templates |= {"cudaGetSymbolSize"}
    # And this is a function of ours, which gets the line of the call from the rewriter.
    templates |= {"cudaGraphAddKernelNode"}
    # And these are for device code.
    templates |= {"cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"}
    templates |= {name for name in features.RUNTIME_API if "MaxPotentialBlockSize" in name}
    assert features.RUNTIME_API - templates == defined
    # Under its real name, a function could be NVIDIA's, or take its place.
    assert not re.findall(r"\bT (cuda[A-Z]\w*)", names)


def _defined(library: Path) -> list[str]:
    """Return the symbols that the library exports, as `nm` prints them, a line each."""
    command = ["nm", "-D", "--defined-only", str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _runs_behind(folder: Path, functions: list[str], libraries: Libraries) -> None:
    """Assert that the backend works in a process that has a library with those functions, all
    wrong."""
    lines = [f".globl {name}\n.type {name}, %function\n{name}:\n.long 0\n" for name in functions]
    note = '.section .note.GNU-stack, "", %progbits\n'  # or the linker warns of its stack
    (folder / "fake.s").write_text(".text\n" + "".join(lines) + note)
    fake = folder / "libfake.so"
    compiler = toolchain.find_compiler().path
    subprocess.run([compiler, "-shared", str(folder / "fake.s"), "-o", str(fake)], check=True)
    program = f"""
        import ctypes, sys, torch
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from common.cpu import backend
        ctypes.CDLL({str(fake)!r}, mode=ctypes.RTLD_GLOBAL)
        backend.Runtime(Path({str(shared.build_runtime(toolchain.detect("cpu")))!r}))
        torch.ops.load_library({str(libraries.path("features", "cpu"))!r})
        torch.ops.test_features.launch_errors(torch.zeros(1))
        torch.ops.test_features.runtime_api(torch.zeros(1))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_nvidia_s_own_runtime_library_is_not_in_the_way(
    libraries: Libraries, tmp_path: Path
) -> None:
    """`import torch` loads it for the whole process if torch was built for CUDA."""
    _runs_behind(tmp_path, ["cudaMalloc", "cudaFree", "cudaGetLastError"], libraries)


def test_the_runtime_calls_its_own_templates(libraries: Libraries, tmp_path: Path) -> None:
    """A day that is loaded first may have the same ones, built with sanitizers' calls in them."""
    lines = _defined(shared.build_runtime(toolchain.detect("cpu")))
    weak = [line.split()[-1] for line in lines if " W " in line]
    assert weak
    _runs_behind(tmp_path, weak, libraries)


def test_matmul_and_softmax(call: Call) -> None:
    a, b = torch.randn(96, 96), torch.randn(96, 96)
    torch.testing.assert_close(call("matmul", a, b, exact=False), a @ b, rtol=1e-4, atol=1e-4)
    x = torch.randn(17, 1000)
    torch.testing.assert_close(call("softmax", x, exact=False), x.softmax(1))


def test_random_order_is_the_same_for_the_same_seed(runtime: backend.Runtime) -> None:
    results = []
    for seed in (5, 5, 6):
        runtime.set_schedule("random", seed)
        runtime.set_threads(1)
        out = torch.zeros(2048, dtype=torch.int32)
        results.append(OPS.waits(out)[40:60].tolist() and out.tolist())
    assert results[0] == results[1]


# ---------------------------------------------------------------- faults

FAULTS = {
    "divergent_branches": (1, "divergent barrier: this thread is in __syncthreads while"),
    "divergent_warp": (2, "deadlock|__syncwarp"),
    "caller_not_in_mask": (3, "__shfl_sync: the calling lane 16 is not in the mask 0x0000ffff"),
    "incomplete_mask": (4, r"8 thread\(s\) wait in __shfl_sync .*\n? .*for lanes 0xffffff00"),
    "mixed_operations": (5, "lane 16 is in __shfl_up_sync while lanes 0x0000ffff"),
    "null_pointer": (6, r"null pointer \(address 0x1c\)"),
    "wild_address": (7, "illegal memory access at address 0x"),
    "wild_bf16": (25, "illegal memory access at address 0x"),  # read by a header of the toolkit
    "impossible_address": (19, "illegal memory access at a non-canonical address"),
    "division_by_zero": (8, "integer division by zero"),
    "stack_overflow": (9, "stack overflow: the local variables of a thread"),
    "trapped": (10, r"__trap\(\) was called"),
    "failed_assertion": (11, "assertion failed in failed_assertion: .*too small"),
    "false_assumption": (24, "the condition of __builtin_assume is false: .*1e30f"),
    "spin_on_memory": (12, "no thread makes progress"),
    "spin_and_count": (23, "no thread makes progress"),
    "spin_on_lock": (13, "no thread makes progress"),
    "endless_loop": (14, "did not finish within 1 s"),
    "abandoned_owner": (15, r"__trap\(\) was called"),
    "escaped_exception": (20, "a C\\+\\+ exception left the kernel: vector::_M_range_check"),
    "fault_in_noexcept": (16, r"__trap\(\) was called"),
    "too_much_static": (17, "bytes of static __shared__ variables"),
    "static_and_dynamic": (18, "4096 of|static and 47104 of dynamic shared memory are more than"),
}


def _fault(which: int) -> None:
    torch.ops.test_faults.run(torch.zeros(1024), which)


def _healthy() -> bool:
    x = torch.zeros(1024)
    torch.ops.test_faults.run(x, 0)
    return x[0].item() == 8 * 64


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_does_no_lasting_harm(runtime: backend.Runtime, name: str) -> None:
    which, message = FAULTS[name]
    runtime.set_time_limit(1 if name == "endless_loop" else 30)
    start = time.process_time()
    with pytest.raises(RuntimeError, match=message) as caught:
        _fault(which)
    assert time.process_time() - start < 10
    text = str(caught.value)
    assert f"kernel {name}, launched at" in text
    text_of_source = source("faults").read_text().splitlines()
    launched = next(i for i, line in enumerate(text_of_source, 1) if f" {name}<<<" in line)
    assert f"faults.cu:{launched}" in text
    for i, line in enumerate(text_of_source, 1):
        if f"// line: {name}" in line:
            assert f"faults.cu:{i}" in text, text
    assert re.search(r"block \(\d+,\d+,\d+\) thread \(\d+,\d+,\d+\)", text)
    assert _healthy()


def test_signals_of_the_watchdog_may_queue_up(runtime: backend.Runtime) -> None:
    """They do while an OS thread waits for a core. Delivered on top of each other, they would
    overflow their stack."""
    runtime.set_threads(1)  # kernels run on this thread
    assert _healthy()
    child = os.fork()
    if not child:
        watched = signal.SIGRTMIN + 7  # watch_signal() of runtime/faults.cpp
        signal.pthread_sigmask(signal.SIG_BLOCK, {watched})
        for _ in range(500):
            signal.pthread_kill(threading.get_ident(), watched)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {watched})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [("spin_on_lock", "no thread makes progress"), ("endless_loop", "a thread has run for 0.3 s")],
)
def test_a_wait_without_end_can_be_cut_short(
    runtime: backend.Runtime, fault: str, message: str
) -> None:
    runtime.set_spin_limit(0.3)
    runtime.set_stuck_limit(0.3)
    start = time.process_time()
    with pytest.raises(RuntimeError, match=rf"(?s){message}.*block \(\d+,0,0\) thread"):
        _fault(FAULTS[fault][0])
    assert time.process_time() - start < 5  # the time limit is 30 s
    OPS.launch_barriers(1, 256, 20_000)  # long, but its threads make progress
    assert _healthy()


def test_threads_and_blocks_have_orders_of_their_own(runtime: backend.Runtime) -> None:
    runtime.set_threads(1)

    def places(*schedule: Any) -> list[list[int]]:
        runtime.set_schedule(*schedule)
        x = torch.zeros(1024)
        torch.ops.test_faults.run(x, 22)
        return x.view(torch.int32)[1:33].reshape(4, 8).tolist()  # when each thread came

    up = [list(range(8 * b, 8 * b + 8)) for b in range(4)]
    assert places("forward") == up
    assert places("forward", 0, "reverse") == up[::-1]
    assert places("reverse", 0, "forward") == [row[::-1] for row in up]
    shuffled = [places("forward", seed, "random") for seed in range(4)]
    assert any(rows != up for rows in shuffled)
    assert all(sorted(rows) == up for rows in shuffled)
    with pytest.raises(ValueError, match="blocks must be one of forward"):
        runtime.set_schedule("forward", 0, "backward")
    with pytest.raises(ValueError, match="completion must be one of late"):
        runtime.set_schedule("forward", 0, "", "soon")


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_faults_in_other_orders(runtime: backend.Runtime, order: str) -> None:
    for name in ("divergent_branches", "incomplete_mask", "null_pointer", "abandoned_owner"):
        runtime.set_schedule(order, 3)
        with pytest.raises(RuntimeError, match=f"kernel {name}, launched at"):
            _fault(FAULTS[name][0])
        assert _healthy()


def test_an_exception_of_host_code_passes(runtime: backend.Runtime) -> None:
    with pytest.raises(RuntimeError, match="thrown by host code"):
        _fault(21)
    assert _healthy()


def test_launches_from_other_threads(runtime: backend.Runtime) -> None:
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            x = torch.randn(8, 300)
            results.append(torch.allclose(OPS.softmax(x), x.softmax(1)))
            with pytest.raises(RuntimeError):
                _fault(10)
            results.append(_healthy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 160
    assert all(results)


def test_a_forked_child_launches(runtime: backend.Runtime) -> None:
    assert _healthy()
    child = os.fork()
    if child == 0:
        try:
            good = _healthy()
            try:
                _fault(6)
                good = False
            except RuntimeError:
                pass
            runtime.set_time_limit(0.3)  # the watchdog is there, too
            try:
                _fault(14)
                good = False
            except RuntimeError:
                pass
            os._exit(0 if good and _healthy() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _healthy()


def test_an_interrupt_ends_a_launch(libraries: Libraries) -> None:
    library = shared.build_runtime(toolchain.detect("cpu"))
    kernels = libraries.path("faults", "cpu")
    program = f"""
        import sys, time, torch
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from common.cpu import backend
        runtime = backend.Runtime(Path({str(library)!r}))
        torch.ops.load_library({str(kernels)!r})
        x = torch.zeros(1024)
        try:
            print("ready", flush=True)
            try:
                torch.ops.test_faults.run(x, 14)
            except RuntimeError:
                while time.sleep(0.01) is None:  # where Python notices the signal
                    pass
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        x.zero_()
        torch.ops.test_faults.run(x, 0)
        print(x[0].item(), flush=True)
    """
    before = _seconds_of_children()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.4)
    child.send_signal(signal.SIGINT)
    output, _ = finish(child)
    assert _seconds_of_children() - before < 20, "the kernel ran on until its time limit, 30 s"
    assert child.returncode == 0
    assert output == "KeyboardInterrupt\n512.0\n"


def _seconds_of_children() -> float:
    """Return the processor seconds of ended children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------- speed


def _seconds(function: Callable[[], object], repeat: int = 5) -> float:
    """Return the seconds of all cores together, since other programs may keep them busy."""
    function()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def test_speed_is_of_the_right_order(runtime: backend.Runtime) -> None:
    """Limits with room for a slower machine; `-s` prints the figures."""
    a, x = torch.randn(512, 512), torch.randn(1024, 4096)
    figures = {
        "matmul 512³, ms": (1e3 * _seconds(lambda: OPS.matmul(a, a)), 1000),
        "softmax 1024×4096, ms": (1e3 * _seconds(lambda: OPS.softmax(x)), 600),
        "launch of one block, µs": (1e3 * _seconds(lambda: OPS.launch_many(1000)), 10),
    }
    runtime.set_threads(1)
    threads = 4096 * 1024
    empty = _seconds(lambda: OPS.launch_empty(4096, 1024))
    figures["empty kernel, ns a thread"] = (1e9 * empty / threads, 80)
    barriers = _seconds(lambda: OPS.launch_barriers(4, 256, 1000))
    figures["__syncthreads, ns a thread"] = (1e9 * barriers / (4 * 256 * 1000), 100)
    for name, (value, limit) in figures.items():
        print(f"{name}: {value:.2f}")
        assert value < limit, name
