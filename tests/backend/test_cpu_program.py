"""Whole programs on the CPU backend: `python -m common.cpu prog.cu -- arguments`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.base.cache import cache_directory
from common.base.paths import ROOT
from common.cpu.findings import ROWS
from tests import progress
from tests.cpu_programs import PROGRAMS, debug, run


def _line_of(program: str, marker: str) -> int:
    text = (PROGRAMS / f"{program}.cu").read_text().splitlines()
    return next(i for i, row in enumerate(text, 1) if marker in row)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(
    ("program", "arguments", "output"),
    [
        ("vector_add", [], "0 of 10000 wrong\n"),
        ("reduce", ["100000", "256"], "5000050000\n"),
        ("managed", [], "8, in a measured time\n"),
    ],
)
def test_a_program_runs(program: str, arguments: list[str], output: str, order: str) -> None:
    done = run(PROGRAMS / f"{program}.cu", "--order", order, "--", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_exit_codes_and_messages_are_the_program_s() -> None:
    done = run(PROGRAMS / "reduce.cu")
    assert (done.returncode, done.stderr) == (4, "usage: reduce N THREADS\n")
    done = run(PROGRAMS / "vector_add.cu", "--", "0")
    assert done.returncode == 3
    line = _line_of("vector_add", "// the launch")
    assert f"vector_add.cu:{line}: invalid configuration argument" in done.stderr
    done = run(PROGRAMS / "reduce.cu", "--", "100", "2000")
    assert done.returncode == 3 and "invalid configuration argument" in done.stderr


def test_threads_run_in_the_requested_order() -> None:
    source = PROGRAMS / "order.cu"
    assert run(source).stdout == "0123\n"
    assert run(source, "--order", "reverse").stdout == "3210\n"
    shuffled = {run(source, "--order", "random", "--seed", str(n)).stdout for n in range(3)}
    assert all(sorted(text) == sorted("0123\n") for text in shuffled) and shuffled != {"0123\n"}
    assert run(source, CUDACPU_ORDER="reverse").stdout == "3210\n"
    done = run(source, CUDACPU_ORDER="sideways")
    assert done.returncode == 2
    assert done.stderr == "CUDACPU_ORDER=sideways: must be forward, reverse or random\n"
    done = run(source, "--threads", "-3")
    assert done.returncode == 2 and "CUDACPU_THREADS=-3: must be a positive number" in done.stderr


def test_a_fault_in_a_kernel_is_explained() -> None:
    done = run(PROGRAMS / "order.cu", "--", "crash")
    assert done.returncode == 1 and done.stdout == "0123\n"
    assert (
        f"order.cu:{_line_of('order', '// here')}" in done.stderr and "null pointer" in done.stderr
    )
    assert "in kernel crash" in done.stderr and "terminate called" not in done.stderr
    done = run(PROGRAMS / "order.cu", "--time-limit", "0.3", "--", "spin")
    assert done.returncode == 1 and "did not finish within 0.3 s" in done.stderr
    assert "--time-limit" in done.stderr
    done = run(PROGRAMS / "order.cu", "--time-limit", "2", "--", "spin", CUDACPU_PROGRESS="0.1")
    assert " s so far, 1 of 1 blocks begun, in kernel spin, launched at " in done.stderr


def test_the_time_limit_counts_what_a_launch_got_of_the_cpu() -> None:
    """A busy machine, simulated by the stopped process, must not end a launch that is right."""
    run(PROGRAMS / "order.cu")  # built
    command = [sys.executable, "-m", "common.cpu", str(PROGRAMS / "order.cu")]
    command += ["--time-limit", "2", "--", "spin"]
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "0123\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGSTOP)
    time.sleep(3)
    child.send_signal(signal.SIGCONT)
    went_on = time.monotonic()
    _, message = progress.finish(child)
    assert child.returncode == 1 and "did not finish within 2 s" in message
    assert time.monotonic() - went_on > 1


def test_ctrl_c_ends_a_program() -> None:
    run(PROGRAMS / "order.cu")  # built
    command = [sys.executable, "-m", "common.cpu", str(PROGRAMS / "order.cu"), "--", "spin"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "0123\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    progress.finish(child)
    assert child.returncode == -signal.SIGINT


def test_a_built_program_runs_by_itself(tmp_path: Path) -> None:
    out = tmp_path / "sum"
    done = run(PROGRAMS / "reduce.cu", "-o", out)
    assert (done.returncode, done.stdout) == (0, "")
    alone = subprocess.run([out, "1000", "128"], capture_output=True, text=True)
    assert (alone.returncode, alone.stdout) == (0, "500500\n")


HELLO = '#include <cstdio>\n#include "part.cuh"\nint main() { return printf("%d\\n", PART) < 0; }\n'


def _built(program: str) -> dict[Path, int]:
    """Return the programs of this name in the cache, with the times when they were written."""
    found = cache_directory().glob(f"program-{program}*/**/{program}")
    written = {path: path.stat().st_mtime_ns for path in found}
    assert written
    return written


def test_it_is_built_again_when_a_header_changes_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "part.cuh"
    source = tmp_path / "hello.cu"
    source.write_text(HELLO)
    environment = {"HUNDRED_DAYS_CACHE": os.environ.get("HUNDRED_DAYS_CACHE", "")}
    words: list[str | Path] = [source, "-I", tmp_path / "include", "-D", "MORE=40"]
    for part in (1, 2):
        header.write_text(f"#pragma once\nconstexpr int PART = MORE + {part};\n")
        done = run(*words, **environment)
        assert done.stdout == f"{40 + part}\n", done.stderr
    built = _built("hello")
    assert run(*words, CXX=os.environ.get("CXX", "")).stdout == "42\n"
    assert _built("hello") == built


def test_a_compile_error_shows_the_user_s_line(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void k() {}\n\nint main() {\n  k<<<1, 1>>>(undeclared);\n}\n")
    done = run(source)
    assert done.returncode == 2 and done.stdout == ""
    assert "broken.cu:4:" in done.stderr and "undeclared" in done.stderr


LIBRARIES = {
    "cublasXt.h": "cuBLAS",
    "cub/device/device_merge_sort.cuh": "CUB",
    "cudnn.h": "cuDNN",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_refused_by_header_and_line(tmp_path: Path, name: str) -> None:
    source = tmp_path / "uses.cu"
    source.write_text(f"#include <cstdio>\n#include <{name}>\nint main() {{}}\n")
    done = run(source)
    assert done.returncode == 2
    expected = f"uses.cu:2: #include <{name}>: {LIBRARIES[name]} is not available on the CPU"
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_cublas_multiplies_as_plain_loops_do() -> None:
    done = run(PROGRAMS / "blas.cu", "-lcublas", "-lcublasLt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 of 2149713 wrong\n", "")


# The words of Philox are those of Random123's known answers, the numbers of XORWOW those that
# NVIDIA's guide to cuRAND prints for its example of the host's API.
RANDOM_NUMBERS = """\
6627e8d5 e169c58d bc57ac4c 9b00dbd8
1 1
XORWOW 0.50 0.29 1
XORWOW -0.00 1.00 0
Philox 0.50 0.29 1
Philox -0.00 1.00 0
0.1455 0.8202 0.5504 0.2948 0.9147 0.8690 0.3219 0.7829 0.0113 0.2855 5.0
103
"""


# Graphs keep the most memory that they have used, at least until it is trimmed.
GRAPH_MEMORY = """\
1 1 1 cudaErrorInvalidValue
made 0 0
1 10000 1e+06
launched 8000 8000
49 10000 1e+06
freed 8000 8000
trimmed 4000 8000
trimmed 0 0
2 1 1
"""


@pytest.mark.parametrize("streams", ["early", "late"])
def test_nodes_of_graphs_allocate_and_free(streams: str) -> None:
    done = run(PROGRAMS / "graph_memory.cu", "--streams", streams)
    assert (done.returncode, done.stdout, done.stderr) == (0, GRAPH_MEMORY, "")


def test_curand_draws_nvidia_s_numbers() -> None:
    done = run(PROGRAMS / "random_numbers.cu", "-lcurand")
    assert (done.returncode, done.stdout, done.stderr) == (0, RANDOM_NUMBERS, "")


def test_thrust_runs_beside_kernels() -> None:
    done = run(PROGRAMS / "thrust_sort.cu")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 999 332833500 499500\n", "")


def test_cub_s_collectives_and_algorithms() -> None:
    for order in ("forward", "reverse", "random"):
        done = run(PROGRAMS / "cub.cu", "--order", order)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0 wrong\n", "")
    done = run(PROGRAMS / "cub.cu", "--", "few")
    assert "cub::BlockLoad for 96 threads is used by a block of 64" in done.stderr
    assert f"cub.cu:{_line_of('cub', 'Load(shared.load)')}" in done.stderr


REUSED = """\
#include <cstdio>
#include <cub/block/block_reduce.cuh>
__global__ void sums(int* out) {
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ Reduce::TempStorage temp;
  int a = Reduce(temp).Sum(threadIdx.x);
  int b = Reduce(temp).Sum(1);  // there is no barrier before it
  if (threadIdx.x == 0) out[0] = a + b;
}
int main() {
  int h, *x;
  cudaMalloc(&x, 4);
  sums<<<1, 128>>>(x);
  cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost);
  printf("%d\\n", h);
}
"""


def test_storage_of_cub_that_is_used_again_without_a_barrier_is_a_race(tmp_path: Path) -> None:
    (tmp_path / "reused.cu").write_text(REUSED)
    done = run(tmp_path / "reused.cu", "--sanitize")
    assert done.returncode == 1 and "orders     FAIL" in done.stdout
    assert "of __shared__ Reduce::TempStorage temp" in done.stdout, done.stdout
    assert "reused.cu:6:" in done.stdout and "reused.cu:7:" in done.stdout


CPP17 = """\
#include <cstdio>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
__global__ void count(int* x, unsigned* total) {
  cuda::atomic_ref<int, cuda::thread_scope_device> shared(*x);
  shared.fetch_add(2);
  shared |= 1;
  atomicCAS_system(total, threadIdx.x ? -1 : 0, 7ull);
  cuda::atomic_ref<int*> pointer(*reinterpret_cast<int**>(x + 2));
  if (threadIdx.x == 0) pointer.store(x), pointer += 3, ++pointer;
}
int main() {
  int* x;
  cudaMallocManaged(&x, 64);
  cudaMemset(x, 0, 64);
  cudaMemPrefetchAsync(x, 64, 0);
  cudaMemAdvise(x, 64, cudaMemAdviseSetReadMostly, cudaCpuDeviceId);
  count<<<1, 32>>>(x, reinterpret_cast<unsigned*>(x + 8));
  cudaThreadSynchronize();
  struct cudaDeviceProp properties = {0};
  properties.clockRate = 5;
  cudaGetDeviceProperties(&properties, 0);
  printf("%d %d ", properties.clockRate, properties.warpSize);
  printf("%d %d %d\\n", x[0], x[8], static_cast<int>(*reinterpret_cast<int**>(x + 2) - x));
}
"""

HOST_CPP = """\
#include <cuda_runtime.h>
static unsigned umin(unsigned a, unsigned b) { return b < a ? b : a; }
#define max(a, b) ((a) > (b) ? (a) : (b))
extern "C" int in_c(int x);
int host(int x) {
  int count = 0;
  cudaGetDeviceCount(&count);
  return max(count, 0) + umin(x, 5) + in_c(x);
}
"""


def test_files_that_are_no_cu_are_the_host_compiler_s(tmp_path: Path) -> None:
    (tmp_path / "host.cpp").write_text(HOST_CPP)
    (tmp_path / "more.c").write_text(
        "#include <cuda_runtime_api.h>\nint in_c(int class) { return class * 100; }\n"
    )
    (tmp_path / "main.cu").write_text(
        '#include <cstdio>\nint host(int);\nint main() { printf("%d\\n", host(9)); }\n'
    )
    done = run(*(tmp_path / name for name in ("main.cu", "host.cpp", "more.c")))
    assert (done.stdout, done.stderr) == ("906\n", "")


def test_libcudacxx_in_cpp17_and_functions_of_earlier_toolkits(tmp_path: Path) -> None:
    (tmp_path / "earlier.cu").write_text(CPP17)
    done = run(tmp_path / "earlier.cu")
    assert (done.stdout, done.stderr) == ("0 32 65 7 4\n", "")


UNSET = """\
#include <cassert>
#include <cstdio>
#include <cstdlib>
template <class T>
__global__ void fill(T* x, int n) {
  int i = threadIdx.x;
  if (i < n) x[i] = x[i] * 0 + i;  // reads what nothing has written
  else x[i] = static_cast<T>(-i);
}
template <class T>
void run(int n) {
  T *x, h[64];
  cudaMalloc(&x, sizeof h);
  if (n < 0) cudaMemset(x, 0xff, sizeof h);
  fill<<<1, 64>>>(x, n);
  cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
  if (getenv("CHECK_RESULT")) assert(h[0] == 0);
}
int main(int argc, char** argv) {
  int n = atoi(argv[2]);
  *argv[1] == 'f' ? run<float>(n) : *argv[1] == 'd' ? run<double>(n) : run<int>(n);
}
"""


def test_numbers_of_memory_that_nothing_has_written_are_named_where_they_reach_the_host(
    tmp_path: Path,
) -> None:
    source = tmp_path / "unset.cu"
    source.write_text(UNSET)
    for words in (("float", "3"), ("double", "3")):
        done = run(source, "--", *words)
        size = 256 if words[0] == "float" else 512
        assert done.returncode == 0
        assert f"some of the numbers that a copy of {size} bytes brought to the host" in done.stderr
    done = run(source, "--", "float", "3", CHECK_RESULT="1")
    assert done.returncode == -signal.SIGABRT
    assert "h[0] == 0" in done.stderr and "brought to the host" in done.stderr
    done = run(source, "--sanitize", "--", "float", "3")
    assert "waits      PASS" in done.stdout and "unwritten  FAIL" in done.stdout, done.stdout
    for words in (("float", "0"), ("double", "0"), ("int", "0"), ("int", "3"), ("int", "-1")):
        assert run(source, "--", *words).stderr == ""


FORGOTTEN = """\
#include <cstring>
struct Arrays { int* at[2]; };
__global__ void fill(int* x, Arrays arrays, int** array) {
  x[threadIdx.x] = arrays.at[1][threadIdx.x] = array[1][threadIdx.x] = -1;
}
int main(int argc, char** argv) {
  int *x[5], **array, h[32];
  for (int*& each : x) cudaMalloc(&each, sizeof h);
  cudaMalloc(&array, 16);
  cudaMemcpy(array, x + 1, 16, cudaMemcpyHostToDevice);  // 1 and 2
  fill<<<1, 32>>>(x[0], Arrays{nullptr, x[3]}, array);
  cudaMemcpy(h, x[atoi(argv[1])], sizeof h, cudaMemcpyDeviceToHost);
  return h[0] + 1;
}
"""


def test_an_array_that_no_kernel_got_is_named_where_it_reaches_the_host(tmp_path: Path) -> None:
    source = tmp_path / "forgotten.cu"
    source.write_text(FORGOTTEN)
    for array in "0234":
        done = run(source, "--", array)
        said = "a copy of 128 bytes brought memory to the host that nothing has written"
        assert (done.returncode, said in done.stderr) == (0, array == "4"), done.stderr
    assert run(source, "--", "0", CUDACPU_HOST_POINTERS="allow").stderr == ""
    done = run("--sanitize", source, "--", "4")
    assert f"unwritten  FAIL  {source}:12: {said}" in done.stdout and done.stdout.count("FAIL") == 1
    assert "FAIL" not in run("--sanitize", source, "--", "3").stdout


@pytest.mark.parametrize("when", ["before", "after"])
def test_host_code_that_follows_a_device_pointer_is_named(when: str) -> None:
    done = run(PROGRAMS / "host_access.cu", "--", when)
    assert done.returncode == -signal.SIGSEGV and done.stdout == ""
    line = _line_of("host_access", f"// {when} a kernel")
    assert "host code accessed device memory" in done.stderr
    assert f"host_access.cu:{line}\n" in done.stderr and "cudaMemcpy" in done.stderr
    done = run(PROGRAMS / "host_access.cu", "--", when, CUDACPU_DEVICE_POINTERS="allow")
    assert done.returncode in (0, 1) and done.stderr == ""


def test_host_code_may_use_managed_and_pinned_memory() -> None:
    done = run(PROGRAMS / "host_access.cu", "--", "never")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_source_that_is_missing_is_named(tmp_path: Path) -> None:
    source = tmp_path / "main.cu"
    source.write_text("float elsewhere(float x);\nint main() { return elsewhere(1) > 0; }\n")
    done = run(source)
    assert done.returncode == 2
    assert done.stderr.startswith("no source defines elsewhere(float)\n"), done.stderr


def test_bad_usage_is_explained() -> None:
    done = run("nowhere.cu")
    assert done.returncode == 2 and "source: nowhere.cu is not a file" in done.stderr
    done = run(PROGRAMS / "order.cu", "extra")
    assert done.returncode == 2 and "source: extra is not a file" in done.stderr
    done = run(PROGRAMS / "order.cu", "--extra")
    assert done.returncode == 2 and "unrecognized arguments: --extra" in done.stderr


SPELLINGS = """\
// café, in Latin-1
#include <part.cuh>
#ifdef NOT_THERE
#include <cufft.h>
#endif
extern __shared__ int numbers[];
struct Pair { int a, b; };
__global__ void fill(int* fill, const Pair& pair) {
  numbers[threadIdx.x] = reversed<8>(threadIdx.x) + pair.b;
  __syncthreads();
  fill[threadIdx.x] = numbers[threadIdx.x];
}
template <class T> __global__ void start(T* x, T first, const int* more) {
  *x = first + (more == nullptr);
}
float lerp(float a) { return a; }
int main() {
  int* x;
  cudaMallocManaged(&x, 32);
  const int shift = SHIFT;
  fill << <1, 8, 32, NULL >> >(x, {0, shift});
  start<<<1, 1>>>(x + 1, 0, NULL);
  start<int><<<1, 1>>>(x + 2, 0, 0);
  start<int><<<1, 1>>>(x + 3, {7}, {});
  cudaSharedMemConfig banks;
  int mode = -1, missing = -1;
  cudaDeviceGetSharedMemConfig(&banks);
  cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, 0);
  cudaStreamAttrValue window = {};
  printf("%d %d %d\\n", banks == cudaSharedMemBankSizeFourByte, cudaStreamAttachMemAsync(0, x),
         cudaStreamSetAttribute(0, cudaStreamAttributeAccessPolicyWindow, &window));
  printf("%d %d %d  %d %d %d %d %s\\n", x[1], x[2], x[3], x[0], x[7], mode, helper(int(lerp(2))),
         cudaGetErrorString(cudaDeviceGetAttribute(&missing, cudaDeviceAttr(9999), 0)));
  return;
}
"""
SPELLED_HEADER = """\
#include <cstdio>
int helper(int);
template <int N> __device__ int reversed(int v) {
  __shared__ int s[N];
  s[threadIdx.x] = v;
  __syncthreads();
  return s[N - 1 - threadIdx.x];
}
"""


def test_spellings_that_nvcc_takes(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "part.cuh").write_text(SPELLED_HEADER)
    (tmp_path / "main.cu").write_text(SPELLINGS, encoding="latin-1")
    (tmp_path / "more.cpp").write_text("int helper(int x) {\n#ifdef _OPENMP\nreturn x;\n#endif\n}")
    words: list[str | Path] = [tmp_path / "main.cu", tmp_path / "more.cpp"]
    words += ["-I", tmp_path / "include", "-DSHIFT=100"]
    done = run(*words, "-Xcompiler", "-fopenmp", "-std=c++17", "-L", tmp_path)
    assert (done.stdout, done.stderr) == ("1 0 0\n1 1 8  107 100 0 2 invalid argument\n", "")


SILENT = """\
#include <cstdio>
__global__ void count(int* x, int n) {
  if (threadIdx.x <= n) x[threadIdx.x] = 1;
}
void launches(int* x) { count<<<1, 1>>>(x, 0); }
int forgets(int x) { printf("in it\\n"); }
int main(int argc, char** argv) {
  int here = 0, *x, *end;
  cudaMalloc(&x, 40);
  end = x + 10;
  switch (argv[1][0]) {
    case 'b': count<<<1, 32>>>(x, 10); break;
    case 'e': count<<<1, 0>>>(end, 0); count<<<1, 2048>>>(x, 0); break;
    case 'c': count<<<1, 2048>>>(x, 0); cudaGetLastError(); break;
    case 'd': puts(cudaGetErrorName(cudaMemcpy(&here, x, 4, cudaMemcpyHostToDevice))); break;
    case 'h': count<<<1, 1>>>(new int[4], 1); break;
    case 's': count<<<1, 1>>>(&here, 0); break;
    case 'r': {
      int* mine = new int[4];
      cudaHostRegister(mine, 16, 0);
      count<<<1, 1>>>(mine, 0);
      printf("%d\\n", mine[0]);
      break;
    }
    case 'f': forgets(1); break;
    case 'l': launches<<<1, 1>>>(x); break;
  }
}
"""


def test_what_a_gpu_lets_pass_is_named(tmp_path: Path) -> None:
    """Wrong programs that would print a wrong result, or nothing, without an error."""
    source = tmp_path / "silent.cu"
    source.write_text(SILENT)

    def ended(case: str, **environment: str) -> tuple[int, str, str]:
        done = run(source, "--", case, **environment)
        return done.returncode, done.stdout, done.stderr

    code, _, text = ended("beyond")
    assert code == 0 and "right beyond the end of an allocation of 40 bytes" in text
    assert "in kernel count, launched at" in text and "silent.cu:12" in text
    code, _, text = ended("error that is never looked at")
    assert code == 0 and text.count("\n") == 1, text
    assert "count did not run: invalid configuration argument: " in text and "count<<<(" in text
    assert "silent.cu:13; the program never looks for errors" in text, "the first, of two"
    assert ended("checked") == (0, "", "")
    assert ended("direction") == (0, "cudaErrorInvalidValue\n", "")
    for case, line in (("heap", 16), ("stack", 17)):
        code, _, text = ended(case)
        assert code == 1 and "argument 1 of kernel count points to host memory" in text, text
        assert f"silent.cu:{line}" in text
    assert ended("heap", CUDACPU_HOST_POINTERS="allow")[0] == 0
    assert ended("registered") == (0, "1\n", "")
    code, _, text = ended("launches")
    assert code == 1 and "launched itself, but is no __global__ function" in text
    assert "silent.cu:5\n" in text and "in kernel launches, launched at" in text
    code, output, text = ended("forgets")
    assert (code, output) == (1, "in it\n")
    assert text.endswith(
        "silent.cu:6: this function has to return a value, and ended without one\n"
    )


LAST_WARP = """\
#include <cstdio>
__device__ void last_warp(volatile int* v, int t) {
  v[t] += v[t + 2];
  v[t] += v[t + 1];
}
__global__ void sum(int* x) {
  extern __shared__ int s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 2) last_warp(s, threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) x[0] = s[0];
}
int main() {
  int h[4] = {1, 2, 3, 4}, *x;
  cudaMalloc(&x, sizeof h);
  cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
  sum<<<1, 4, sizeof h>>>(x);
  cudaMemcpy(h, x, 4, cudaMemcpyDeviceToHost);
  printf("%d\\n", h[0]);
}
"""


def test_a_wrong_sum_of_a_warp_that_does_not_wait_is_named(tmp_path: Path) -> None:
    source = tmp_path / "sum.cu"
    source.write_text(LAST_WARP)
    done = run(source)
    assert (done.returncode, done.stdout) == (0, "6\n"), "GPUs before Volta print 10"
    assert done.stderr.startswith(f"CUDA on CPU: {source}:4: ") and "__syncwarp()" in done.stderr
    assert done.stderr.count("\n") == 1
    waits = LAST_WARP.replace("v[t] += v[t + 1];", "__syncwarp(3);\n  v[t] += v[t + 1];")
    source.write_text(waits)
    done = run(source)
    assert (done.returncode, done.stderr) == (0, "")


ASSERTS = """\
#include <cassert>
#include <cstdio>
#include <nvtx3/nvToolsExtCudaRt.h>
__global__ void set(int* x, int least) {
  assert(threadIdx.x >= least);
  x[threadIdx.x] = 7;
}
int main() {
  int* x;
  int h = 0;
  cudaMalloc(&x, 256);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  nvtxNameCudaStream(stream, "copies");
  set<<<1, 64>>>(x, 0);
  printf("%d ", cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost) + h);
  set<<<1, 64, 0, stream>>>(x, 64);
  printf("%d ", cudaStreamSynchronize(stream));
  printf("%s %d ", cudaGetErrorName(cudaGetLastError()), cudaGetLastError());
  printf("%d %d ", cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost), cudaMemset(x, 0, 4));
  set<<<1, 64>>>(x, 0);
  printf("%d %d ", cudaGetLastError(), cudaDeviceSynchronize());
  cudaDeviceReset();
  printf("%d %d\\n", cudaGetLastError(), cudaDeviceSynchronize());
}
"""


def test_a_failed_assert_is_an_error_of_every_later_call(tmp_path: Path) -> None:
    source = tmp_path / "asserts.cu"
    source.write_text(ASSERTS)
    for streams in ("early", "late"):
        done = run(source, CUDACPU_STREAMS=streams)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "7 710 cudaErrorAssert 710 710 710 710 710 710 0\n", done.stdout
        assert done.stderr.startswith("CUDA on CPU: assertion failed in set: threadIdx.x >= least")
        assert "asserts.cu:5" in done.stderr and "launched at" in done.stderr
    done = run("--sanitize", source)
    assert done.returncode == 1
    assert "waits      FAIL  in forward order: assertion failed in set" in done.stdout, done.stdout


FAULTY = """\
#include <cstdio>
__device__ int sum;
__global__ void faulty(int* x, int n, char fault) {
  __shared__ int s[64];
  const int i = threadIdx.x;
  if (fault == 'z') atomicAdd(x + i, 1);
  if (fault != 'u') s[i] = i;
  if (fault == 'd' && i >= 40) return;
  if (fault == 'd' && i < 20) __syncthreads();
  if (fault != 'r' && fault != 'd') __syncthreads();
  x[i] = s[63 - i];
  if (fault == 'b' && i <= n) x[4 * i] = i;
  if (fault == 'o') sum = i;
  if (fault == 'w') while (atomicAdd(&sum, 0) == 0);
  if (fault == 'h') x[1 << 30] = 1;
  const int next = fault == 'l' && i < n ? __shfl_down_sync(0xffff, i, 1) : 0;
  if (fault == 'l' && i == n - 1) sum = next;  // from a lane that the mask leaves out
  if (fault == 'm' && i >= n) return;
  if (fault == 'm') sum = __shfl_sync(~0u, 1, 0);
}
int main(int argc, char** argv) {
  int *x, h = 0;
  cudaMalloc(&x, 256);
  faulty<<<1, 64>>>(x, 16, argv[1][0]);
  cudaMemcpyFromSymbol(&h, sum, 4);
  printf("%d\\n", argv[1][0] == 'p' ? x[0] : h);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin); cudaEventCreate(&end);
  cudaEventRecord(begin); cudaEventRecord(end);
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  printf("took %.9f ms\\n", ms);
}
"""

# The planted fault, the row that finds it, and words of the report.
FAULTS = {
    "race": ("races", "faulty.cu:11 and"),
    "diverges": ("waits", "barrier"),
    "unwritten": ("unwritten", "faulty.cu:11 reads"),
    "beyond": ("addresses", "4 bytes beyond the end of an allocation of 256 bytes"),
    "order": ("orders", "another output in reverse order"),
    "waits": ("waits", "makes progress"),
    "hole": ("addresses", "faulty.cu:15"),
    "zeros missing": (
        "unwritten",
        "faulty.cu:6 reads global memory, byte 0 of an allocation of 256 bytes, "
        "which nothing has written",
    ),
    "lane": ("orders", "lane 15 reads lane 16 by __shfl_down_sync, which the mask 0x0000ffff"),
    "mask": ("waits", "__shfl_sync: the mask 0xffffffff names lanes 16 to 31, which returned"),
    "pointer": ("addresses", "host code accessed device memory"),
}


def test_the_debugger_finds_what_is_planted_in_a_program(tmp_path: Path) -> None:
    source = tmp_path / "faulty.cu"
    source.write_text(FAULTY)

    good = debug(source, "nothing")
    assert {status for status, _ in good.values()} == {"PASS"}, good
    assert set(good) == {*ROWS, "streams"}
    for fault, (row, words) in FAULTS.items():
        rows = debug(source, fault)
        assert rows[row][0] == "FAIL" and words in rows[row][1], f"{fault}: {rows}"


RIGHT, ZERO = "1001000\n", "0\n"
NEVER = "CUDA on CPU: nothing waits for "

# The missing wait, then the program's output with late streams, and its error output.
LATE = {
    "two streams": (ZERO, f"{NEVER}a copy of 4000 bytes"),
    "read by the host": (ZERO, f"{NEVER}a copy of 4000 bytes"),
    "pinned memory reused": (ZERO, ""),
    "staged memory reused": (RIGHT, ""),
    "freed": ("", "used after it was freed: memory that is used by a copy of 4000 bytes"),
    "legacy stream": (ZERO, f"{NEVER}a copy of 4000 bytes"),
    "memset": (ZERO, ""),
    "queried": (ZERO, f"{NEVER}a host function"),
    "unfinished": (RIGHT, f"{NEVER}kernel twice, launched at"),
}


@pytest.mark.parametrize("case", LATE)
def test_streams_are_late_where_a_wait_is_missing(case: str) -> None:
    """Only then: the same program with all its waits, and both in the ordinary mode, are right."""
    source = PROGRAMS / "streams.cu"
    for way in ("right", "wrong"):
        done = run(source, "--", case, way)
        assert (done.returncode, done.stdout, done.stderr) == (0, RIGHT, "")
    for order in ("forward", "random"):
        done = run(source, "--streams", "late", "--order", order, "--", case, "right")
        assert (done.returncode, done.stdout, done.stderr) == (0, RIGHT, "")
    output, words = LATE[case]
    done = run(source, "--streams", "late", "--", case, "wrong")
    assert done.stdout == output and words in done.stderr and bool(words) == bool(done.stderr)
    assert done.returncode == (case == "freed")


def test_a_late_kernel_fails_where_the_host_waits_for_it() -> None:
    for streams, output in (("early", ""), ("late", "launched\n")):
        done = run(PROGRAMS / "streams.cu", "--streams", streams, "--", "error", "right")
        assert (done.returncode, done.stdout) == (1, output)
        line = _line_of("streams", "// the launch")
        assert "illegal memory access" in done.stderr
        assert f"in kernel twice, launched at {PROGRAMS / 'streams.cu'}:{line}" in done.stderr


def test_the_debugger_runs_a_program_with_late_streams() -> None:
    def row(case: str, way: str) -> tuple[str, str]:
        return debug(PROGRAMS / "streams.cu", case, way)["streams"]

    assert row("two streams", "right")[0] == "PASS"
    status, text = row("two streams", "wrong")
    assert status == "FAIL"
    assert text.startswith("another output with late streams than in forward order")
    assert "forward: 1001000\nnow:     0\n" in text
    status, text = row("freed", "wrong")
    assert status == "FAIL" and text.startswith("with late streams: used after it was freed")
    status, text = row("unfinished", "wrong")
    assert status == "PASS" and "nothing waits for kernel twice, launched at" in text


def test_the_profiler_counts_a_program_s_accesses(tmp_path: Path) -> None:
    source = tmp_path / "strided.cu"
    source.write_text(
        "#include <cstdio>\n__global__ void copy(const float* x, float* y) {\n"
        "  y[threadIdx.x] =\n      x[8 * threadIdx.x];\n}\n"
        "int main() { float *x, *y; cudaMalloc(&x, 1024); cudaMalloc(&y, 128);\n"
        '  copy<<<1, 32>>>(x, y); puts("done"); return 3; }\n'
    )
    done = run("--profile", source)
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "done"
    assert lines[2].split() == ["copy", "32.00", "4.00", "0"]
    assert any("x[8 * threadIdx.x];" in line and " 32.00" in line for line in lines)


FRAGMENTS = {  # factor type, element, K, leading dimension: bank conflicts of loading B, by rows
    ("__half", "__half", 16, 128): 28,
    ("__half", "__half", 16, 136): 0,
    ("__nv_bfloat16", "__nv_bfloat16", 16, 128): 28,
    ("__nv_bfloat16", "__nv_bfloat16", 16, 136): 0,
    ("wmma::precision::tf32", "float", 8, 128): 12,
    ("wmma::precision::tf32", "float", 8, 132): 4,
    ("wmma::precision::tf32", "float", 8, 136): 0,
    ("signed char", "signed char", 16, 128): 24,
    ("signed char", "signed char", 16, 144): 8,
}


def test_the_profiler_counts_the_loads_that_a_fragment_takes_on_a_gpu(tmp_path: Path) -> None:
    launches = "".join(
        f"  load<{factor}, {element}, {depth}, {pitch}><<<1, 32>>>(out);\n"
        for factor, element, depth, pitch in FRAGMENTS
    )
    source = tmp_path / "fragments.cu"
    source.write_text(
        "#include <mma.h>\nusing namespace nvcuda;\n"
        "template <class Factor, class Element, int K, int PITCH>\n"
        "__global__ void load(char* out) {\n"
        "  __shared__ __align__(32) char bytes[K * PITCH * sizeof(Element)];\n"
        "  for (int i = threadIdx.x; i < sizeof bytes; i += 32) bytes[i] = 0;\n"
        "  __syncwarp();\n"
        "  wmma::fragment<wmma::matrix_b, 16, 16, K, Factor, wmma::row_major> b;\n"
        "  wmma::load_matrix_sync(b, reinterpret_cast<const Element*>(bytes), PITCH);\n"
        "  out[threadIdx.x] = static_cast<float>(b.x[0]) != 0;\n}\n"
        f"int main() {{\n  char* out;\n  cudaMalloc(&out, 32);\n{launches}"
        "  return cudaDeviceSynchronize();\n}\n"
    )
    done = run("--profile", source)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.lstrip().startswith("load<")]
    assert [int(row[-1]) for row in rows] == list(FRAGMENTS.values()), done.stdout
