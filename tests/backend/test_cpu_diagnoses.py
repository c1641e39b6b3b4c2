"""Mistakes of programs that a GPU shows late, as a wrong number, or not at all: the CPU backend
names them, and is silent about the right twin. Programs that are right, and easily taken for wrong,
run."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from common.base import toolchain
from common.cpu import program
from tests.cpu_programs import debug, run

AS_ON_A_GPU = """\
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <device_functions.h>
#include <strings.h>
int destroyed;
struct Counter {
  int* place;
  int in_thread = 1;
  explicit Counter(int* place) : place(place) {}
  Counter(const Counter& other) : place(other.place) {}
  ~Counter() { ++destroyed; }
  __device__ void add() { atomicAdd(place, in_thread++); }
};
struct Pair { int first, second; };
__device__ volatile int flag;
__global__ void count(Counter counter) { counter.add(); }
__global__ void change(Pair& pair, int& number, int value) {
  pair.second += value;
  number = value;
}
__global__ void norm(int* x) { *x += 1; }
__global__ void div(int* x, int by) { *x += by; }
__global__ void index(float* x, int* n) { *n += 100; }
__global__ void max(int* x) { *x += 1000; }
__global__ void twice(int* x) { *x *= 2; }
__global__ void twice(float* x) { *x *= 2; }
__global__ void raise_flag() { flag = flag + 1; }
int main(int argc, char** argv) {
  int *number, on_host = 0;
  Pair* pair;
  cudaMallocManaged(&number, sizeof *number);
  cudaMallocManaged(&pair, sizeof *pair);
  if (argc > 1) {
    change<<<1, 1>>>(*pair, on_host, 1);
    return 0;
  }
  *number = 0;
  count<<<2, 64>>>(Counter(number));
  cudaDeviceSynchronize();
  printf("%d added, %d destroyed\\n", *number, destroyed);
  *pair = {1, 2};
  change<<<1, 1>>>(*pair, *number, 5);
  cudaDeviceSynchronize();
  printf("%d %d %d\\n", pair->first, pair->second, *number);
  *number = 0;
  norm<<<1, 1>>>(number);
  div<<<1, 1>>>(number, 10);
  index<<<1, 1>>>(nullptr, number);
  max<<<1, 1>>>(number);
  twice<<<1, 1>>>(number);
  cudaDeviceSynchronize();
  cudaFuncAttributes attributes;
  void (*kernel)(float*) = twice;
  printf("%d %s\\n", *number, cudaGetErrorName(cudaFuncGetAttributes(&attributes, kernel)));
  int value = 5;
  cudaMemcpyToSymbol(flag, &value, sizeof value);
  raise_flag<<<1, 1>>>();
  cudaMemcpyFromSymbol(&value, flag, sizeof value);
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  printf("%d, %d copy engines, %d\\n", value, card.asyncEngineCount, card.concurrentKernels);
}
"""


def test_arguments_and_names_are_as_on_a_gpu(tmp_path: Path) -> None:
    """An object is copied by its bytes, a reference is one, and a name may be the C library's."""
    source = tmp_path / "right.cu"
    source.write_text(AS_ON_A_GPU)
    for streams in ("early", "late"):
        done = run(source, "--streams", streams)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "128 added, 2 destroyed",  # the argument, and the launch's copy
            "1 7 5",
            "2222 cudaSuccess",
            "6, 3 copy engines, 1",
        ]
    done = run(source, "--", "host")
    assert done.returncode == 1
    assert "argument 2 of kernel change refers to host memory" in done.stderr, done.stderr


SILENT = """\
#include <cstdio>
__device__ int total, parts[8];
__device__ float factor = 2;
__global__ void fill(int* x) { x[threadIdx.x] = threadIdx.x; atomicAdd(&total, 1); }
int main(int argc, char** argv) {
  int *x, here[8] = {};
  cudaMalloc(&x, 32);
  fill<<<1, 8>>>(x);
  switch (argv[1][0]) {
    case 't': cudaFree(x); cudaFree(x); break;
    case 'a': cudaFree(x); cudaFree(x); cudaGetLastError(); break;
    case 'v': cudaFree(x); (void)cudaFree(x); break;
    case 'c': if (argc) cudaMemcpy(here, x, 64, cudaMemcpyDeviceToHost); break;
    case 'f':
      cudaFree(x);
      fill<<<1, 8>>>(x); break;
    case 'g':
      cudaFree(x);
      puts(cudaGetErrorString(cudaMemcpy(here, x, 32, cudaMemcpyDeviceToHost))); break;
    case 'r':
      here[0] = total;
      puts("read"); break;
    case 'w':
      factor = 3; break;
    case 'p':
      fill<<<1, 8>>>(parts); break;
    case 'm': puts(cudaGetErrorString(cudaMemcpy(here, parts, 32, cudaMemcpyDeviceToHost))); break;
    case 's': {
      void* address;
      cudaGetSymbolAddress(&address, parts);
      fill<<<1, 8>>>(static_cast<int*>(address));
      cudaMemcpy(here, address, sizeof parts, cudaMemcpyDeviceToHost);
      int count = 0;
      cudaMemcpyFromSymbol(&count, total, sizeof total);
      printf("%d %d\\n", here[7], count);
    }
  }
  return here[0];
}
"""

OF_HOST = "host code accessed the device memory of a __device__ variable\n  at {}/silent"

# The case, the exit code (None: a signal), and words of the error output, "" for none.
SILENT_CASES = [
    ("twice", 0, "silent.cu:10 failed: invalid argument; the program never looks for errors"),
    ("answered", 0, ""),
    ("void", 0, ""),
    ("copy", 0, "cudaMemcpy at {}/silent.cu:13 failed: invalid argument"),
    ("freed", 1, "argument 1 of kernel fill points to memory that was freed, at {}/silent.cu:15"),
    ("read", None, OF_HOST + ".cu:21\n"),
    ("write", None, OF_HOST + ".cu:24\n"),
    ("passed", 1, "argument 1 of kernel fill points to the device memory of a __device__ variable"),
    ("symbol", 0, ""),
]


def test_what_a_gpu_answers_with_a_wrong_number_is_named(tmp_path: Path) -> None:
    source = tmp_path / "silent.cu"
    source.write_text(SILENT)
    for case, code, words in SILENT_CASES:
        done = run(source, "--", case)
        assert done.returncode == code or (code is None and done.returncode < 0), (case, done)
        expected = words.format(tmp_path)
        assert expected in done.stderr and bool(expected) is bool(done.stderr), (case, done.stderr)
    assert done.stdout == "7 16\n"
    freed = run(source, "--", "got freed").stdout
    assert freed == f"invalid argument: memory that was freed, at {source}:18\n"
    by_name = run(source, "--", "memory by its name").stdout
    assert by_name.startswith("invalid argument: a __device__ variable: cudaMemcpyToSymbol")
    allowed = run(source, "--", "read", CUDACPU_DEVICE_POINTERS="allow")
    assert (allowed.returncode, allowed.stderr) == (8, "")


DEBUGGED = """\
#include <cstdio>
#include <cstdlib>
#include <cstring>
struct Row { int n; int* data; };
struct Padded { char a; double b; };
__global__ void follow(Row* row) { if (threadIdx.x < row->n) row->data[threadIdx.x] *= 2; }
__device__ int index() { return blockIdx.x * 64 + threadIdx.x; }
__global__ void squares(int* x, int n) { if (index() < n) x[index()] = index() * index(); }
__global__ void padded(Padded* x) { x[threadIdx.x].a = 1; x[threadIdx.x].b = 2; }
__global__ void clear(char* x, int n) {
  int* mine = (int*)malloc(8);
  mine[0] = 0;
  int* more = new int(mine[0]);
  memset(x, *more, n);
  free(mine);
  delete more;
}
__global__ void hello() { printf("hello from %d of %d\\n", threadIdx.x, blockIdx.x); }
__global__ void negate(int* x) { x[threadIdx.x] = -x[threadIdx.x]; }
__global__ void shift(int* x, int n) { x[threadIdx.x] = __shfl_down_sync(~0u, x[threadIdx.x], n); }
int main(int, char** argv) {
  const char fault = argv[1][0];
  int h[100] = {}, *x, *mapped;
  cudaMalloc(&x, sizeof h);
  if (fault == 'r' || fault == 'd') {
    Row row{4, fault == 'r' ? (int*)malloc(16) : x}, *on_device;
    memset(h, 0, sizeof h);
    cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
    cudaMalloc(&on_device, sizeof row);
    cudaMemcpy(on_device, &row, sizeof row, cudaMemcpyHostToDevice);
    follow<<<1, 32>>>(on_device);
    cudaDeviceSynchronize();
  } else if (fault == 'p' || fault == 'w') {
    squares<<<fault == 'p' ? 100 / 64 : 2, 64>>>(x, 100);
    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
    Padded* pairs;
    Padded at_home[6];
    cudaMalloc(&pairs, sizeof at_home);
    if (fault == 'w') {
      padded<<<1, 6>>>(pairs);
      cudaMemcpy(at_home, pairs, sizeof at_home, cudaMemcpyDeviceToHost);
      clear<<<1, 1>>>((char*)pairs, sizeof at_home);
      cudaMemcpy(at_home, pairs, sizeof at_home, cudaMemcpyDeviceToHost);
    }
  } else if (fault == 'h' || fault == 'n') {
    hello<<<2, 3>>>();
    if (fault == 'h') cudaDeviceSynchronize();
  } else if (fault == 'm' || fault == 's') {
    cudaHostAlloc(&mapped, 16, cudaHostAllocMapped);
    for (int i = 0; i < 4; ++i) mapped[i] = i;
    negate<<<1, 4>>>(mapped);
    if (fault == 's') cudaDeviceSynchronize();
    printf("%d\\n", mapped[3]);
    cudaDeviceSynchronize();
  } else if (fault == 'e' || fault == 'o') {
    cudaStream_t first, second;
    cudaEvent_t done;
    cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    cudaEventCreate(&done);
    cudaMemset(x, 0, sizeof h);
    cudaDeviceSynchronize();
    squares<<<2, 64, 0, first>>>(x, 100);
    cudaEventRecord(done, first);
    if (fault == 'o') cudaStreamWaitEvent(second, done);
    negate<<<1, 64, 0, second>>>(x);
    cudaDeviceSynchronize();
    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
    printf("%d\\n", h[5]);
  } else {
    cudaMemset(x, 0, sizeof h);
    shift<<<1, 20>>>(x, 16);
    cudaMemcpy(h, x, 80, cudaMemcpyDeviceToHost);
    printf("%d\\n", h[5]);
  }
}
"""

# A fault, its row and words of the report; then right programs.
FAULTS = {
    "row of the host": ("addresses", "debugged.cu:6 follows a pointer to host memory"),
    "part": (
        "unwritten",
        "debugged.cu:35: a copy of 400 bytes brought memory to the host that nothing has written: "
        "bytes 256 to 399",
    ),
    "never waited for": ("streams", "nothing waits for kernel hello, launched at"),
    "mapped": ("streams", "nothing waits in time for kernel negate, launched at {}:51, which"),
    "event": ("streams", "nothing waits in time for kernel squares, launched at {}:63, which"),
    "lanes": (
        "orders",
        " reads lane 31 by __shfl_down_sync, which the mask 0xffffffff names, and a block "
        "of 20 threads does not have",
    ),
}
SOUND = ("device row", "written", "hello", "synchronised", "ordered")


@pytest.fixture(scope="module")
def debugged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("debugged") / "debugged.cu"
    source.write_text(DEBUGGED)
    return source


@pytest.mark.parametrize("fault", FAULTS)
def test_the_debugger_names_the_cause(debugged: Path, fault: str) -> None:
    row, words = FAULTS[fault]
    status, text = debug(debugged, fault)[row]
    assert status == "FAIL" and words.format(debugged) in text, text


def test_the_debugger_names_the_operation_that_came_first(debugged: Path) -> None:
    _, text = debug(debugged, "event")["streams"]
    assert f"after kernel negate, launched at {debugged}:66" in text, text
    assert "which uses the same memory" in text


@pytest.mark.parametrize("right", SOUND)
def test_the_debugger_is_silent_about_right_programs(debugged: Path, right: str) -> None:
    rows = debug(debugged, right)
    assert {status for status, _ in rows.values()} == {"PASS"}, rows
    assert "nothing waits" not in rows["streams"][1]


GRID = """\
#include <cstdio>
__device__ unsigned arrived;
__global__ void meet(int* x) {
  if (threadIdx.x == 0) {
    atomicAdd(&arrived, 1);
    while (atomicAdd(&arrived, 0) < gridDim.x);
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(x, 1);
}
int main(int, char** argv) {
  int* x;
  int h = 0, blocks = 0;
  sscanf(argv[1], "%d", &blocks);
  cudaMalloc(&x, 4);
  cudaMemset(x, 0, 4);
  meet<<<blocks, 256>>>(x);
  cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost);
  printf("%d\\n", h);
}
"""


def test_blocks_that_wait_for_the_grid_run_as_far_as_they_fit(tmp_path: Path) -> None:
    """160 blocks of 256 threads fit a T4, which has 40 multiprocessors for 1024 threads each."""
    source = tmp_path / "grid.cu"
    source.write_text(GRID)
    done = run(source, "--model", "7.5", "--", "160")
    assert (done.returncode, done.stdout) == (0, "160\n"), done.stderr
    done = run(source, "--model", "7.5", "--", "170")
    assert done.returncode == 1
    assert "10 block(s) have not begun: 160 are resident, as many as" in done.stderr, done.stderr


SHARED = """\
#include <cstdio>
template <class T>
__global__ void reverse(T* x) {
  extern __shared__ T row[];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}
namespace other {
__global__ void fill(int* x) {
  extern __shared__ int row[];
  x[threadIdx.x] = row[threadIdx.x] = threadIdx.x;
}
}
int main() {
  SECOND* x;
  int* y;
  cudaMalloc(&x, 256);
  cudaMalloc(&y, 128);
  cudaMemset(x, 0, 256);
  reverse<<<1, 32, 128>>>((float*)x);
  reverse<<<1, 32, 256>>>(x);
  other::fill<<<1, 32, 128>>>(y);
  printf("%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
"""


def test_a_dynamic_array_has_one_type_as_for_nvcc(tmp_path: Path) -> None:
    """Two instances of a template that declare it with their type conflict; a namespace does
    not."""
    source = tmp_path / "shared.cu"
    source.write_text(SHARED)
    done = run(source, "-D", "SECOND=float")
    assert (done.returncode, done.stdout) == (0, "no error\n"), done.stderr
    done = run(source, "-D", "SECOND=double")
    assert done.returncode == 2
    assert f"{source}:4:" in done.stderr and "conflicting declaration" in done.stderr


HEAP = """\
#include <cstdio>
#include <cstdlib>
__device__ int sum;
struct Large { char bytes[16 << 20]; };
__device__ void use(char* x, int n) {
  for (int i = 0; i < 64; ++i) x[i] = i;
  for (int i = 0; i < 64; ++i) atomicAdd(&sum, x[i ^ n]);
}
__global__ void allocate(size_t bytes) {
  char* x = static_cast<char*>(malloc(bytes));
  use(x, static_cast<int>(bytes >> 20));
  free(x);
}
__global__ void look(size_t bytes) {
  char* x = static_cast<char*>(malloc(bytes));
  if (x) use(x, 3);
  else sum = -1;
  Large* large = new Large;
  if (large) use(large->bytes, 3);
  else sum -= 1;
  delete large;
  free(x);
}
int main(int, char** argv) {
  if (*argv[1] == 'm') cudaDeviceSetLimit(cudaLimitMallocHeapSize, 128 << 20);
  for (int i = 0; i < 10 && *argv[1] == 'f'; ++i) allocate<<<1, 4>>>(1 << 20);
  if (*argv[1] == 'l') look<<<1, 1>>>(16 << 20);
  if (*argv[1] == 'b' || *argv[1] == 'm') allocate<<<1, 1>>>(16 << 20);
  int h = 0;
  cudaMemcpyFromSymbol(&h, sum, sizeof h);
  printf("%d\\n", h);
}
"""


def test_the_heap_of_kernels_has_a_size(tmp_path: Path) -> None:
    source = tmp_path / "heap.cu"
    source.write_text(HEAP)
    for case, output in (("freed", 10 * 4 * 2016), ("looked at", -2), ("made larger", 2016)):
        done = run(source, "--", case)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{output}\n", "")
    status, text = debug(source, "beyond")["addresses"]
    assert status == "FAIL" and "through a null pointer" in text and "heap.cu:6" in text, text
    assert "malloc returned null: 16777216 bytes do not fit the heap of kernels" in text, text


LOCALS = """\
#include <cstdio>
__global__ void sums(const float* x, float* y, long n, int first) {
  float sum;
  if (first) sum = 0;
  for (int i = 0; i < 64; ++i) sum += x[i];
  int place = threadIdx.x * n / 64;
  y[place] = sum;
}
int main(int argc, char**) {
  float *x, *y, h[64];
  cudaMalloc(&x, sizeof h);
  cudaMalloc(&y, sizeof h);
  cudaMemset(x, 0, sizeof h);
  sums<<<1, 64>>>(x, y, 64, argc - 1);
  cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin);
  cudaEventRecord(end);
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin, end);
  long bytes = sizeof h;
  int small = bytes;
  printf("%g of %d bytes\\nin %.9f ms\\n", h[5], small, milliseconds);
}
"""


def test_locals_that_are_never_set_and_short_indices_are_named(tmp_path: Path) -> None:
    """The value of an unset local changes from run to run; that of a set one does not. An index of
    32 bits is right in a small program, which passes."""
    source = tmp_path / "locals.cu"
    source.write_text(LOCALS)
    status, text = debug(source)["locals"]
    assert status == "FAIL", text
    assert text.startswith(f"{source}:5: variable sum may be read before it is set"), text
    assert "zeros: 0 of 256 bytes\nnow:   -1.69474e+38 of 256 bytes" in text, text
    rows = debug(source, "set")
    assert {status for status, _ in rows.values()} == {"PASS"}, rows
    assert rows["indices"][1].splitlines() == [
        "right only for fewer than 2^31 elements:",
        f"{source}:6: a value of long int is kept in int; static_cast says where that is meant",
    ]


OVERWRITTEN = """\
#include <cstdio>
__global__ void beyond(int* x) { for (int i = 2048; i < 3080; ++i) x[i] = 5; }
int main() {
  int* x;
  cudaMalloc(&x, 8192);
  beyond<<<1, 1>>>(x);
  cudaDeviceSynchronize();
  cudaFree(x);
}
"""


def test_a_program_ends_that_has_overwritten_the_records_of_the_c_library(tmp_path: Path) -> None:
    """The library aborts and holds a lock; a report that allocates must not wait for it."""
    source = tmp_path / "overwritten.cu"
    source.write_text(OVERWRITTEN)
    platform = replace(toolchain.detect("cpu"), variant="trace")
    built = program.executable([source], platform)
    trace = {"CUDACPU_TRACE": "1", "CUDACPU_TRACE_FILE": str(tmp_path / "trace.json")}
    done = subprocess.run(
        [built], capture_output=True, text=True, timeout=60, env={**os.environ, **trace}
    )
    assert done.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT), done
    assert "written right beyond the end of an allocation of 8192 bytes" in done.stderr
