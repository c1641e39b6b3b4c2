"""Single-change mutants: their derivation from a source, their names, their selection."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.base.days import Day, discover
from common.base.outcome import Status
from common.base.toolchain import Platform, detect
from common.base.verdict import EQUIVALENT, KILLED, STILLBORN, SURVIVED, Verdict, score
from common.base.verdict import Status as TrialStatus
from common.mutants import derive, run_trial, trial_server
from common.mutants.campaign import (
    Choice,
    Unwatched,
    _DayCampaign,
    _leaves_out_more,
    _no_longer_run,
)
from common.mutants.derive import Mutant
from common.mutants.heuristics import covered, unfit
from common.mutants.inlined import inlined, own_headers
from common.mutants.kinds import DEVICE_CHECK, KINDS
from common.mutants.known_verdicts import KnownVerdicts
from common.mutants.outline import outline, reached_together, trimmed
from common.mutants.trial import Result, Trial
from common.process.events import Channel, Ran, Stage

DAYS, _ = discover()


def device(body: str) -> str:
    return f"__global__ void kernel(float* y, int n) {{\n  {body}\n}}\n"


def host(body: str) -> str:
    return f"Tensor launcher(const Tensor& x) {{\n  {body}\n}}\n"


def mutants_of(source: str, kind: str = "") -> list[Mutant]:
    found = derive.mutants(Path("a.cu"), outline(source))
    return [mutant for mutant in found if kind in ("", mutant.kind.name)]


def changes(source: str, kind: str) -> list[str]:
    return [f"{m.original} -> {m.changed}" for m in mutants_of(source, kind)]


# For each kind, code and its mutants. Every kind has to be here.
EXAMPLES: dict[str, list[tuple[str, list[str]]]] = {
    "barrier removed": [
        (device("__syncthreads();"), ["__syncthreads() -> "]),
        (device("for (;;) { __syncwarp(); }"), ["__syncwarp() -> "]),
        (device("ptx::cp_async_wait<0>();"), ["ptx::cp_async_wait<0>() -> "]),
        (device("block.sync();"), ["block.sync() -> "]),
        (device("ptx::mbarrier_wait(&full, 0);"), ["ptx::mbarrier_wait(&full, 0) -> "]),
        (device("int last = __syncthreads_or(n);"), []),
        (host("stream.sync();"), []),
    ],
    "fence or memory order": [
        (device("__threadfence();"), ["__threadfence() -> "]),
        (
            device("flag.store(1, cuda::memory_order_release);"),
            ["memory_order_release -> memory_order_relaxed"],
        ),
        (device("flag.load(cuda::memory_order_relaxed);"), []),
    ],
    "atomic made plain": [
        (
            device("atomicAdd(y, 1.0f);"),
            [
                "atomicAdd(y, 1.0f) -> [&] { auto* at_ = (y); const auto old_ = *at_; "
                "*at_ = old_ + (1.0f); return old_; }()"
            ],
        ),
        (device("atomic_add(y, 1.0f);"), []),
    ],
    "shuffle": [
        (
            device("n += __shfl_down_sync(FULL, n, 4);"),
            [
                "__shfl_down_sync(FULL, n, 4) -> __shfl_down_sync(0x0000ffffu, n, 4)",
                "__shfl_down_sync(FULL, n, 4) -> __shfl_down_sync(FULL, n, (4) + 1)",
            ],
        ),
    ],
    "shared memory too small": [
        (
            device("__shared__ float tile[2 * N][N];"),
            ["tile[2 * N] -> tile[(2 * N) - 1]"],
        ),
        (device("extern __shared__ float tile[];"), []),
        (host("kernel<<<1, 32, bytes, stream>>>(y);"), ["bytes -> (bytes) / 2"]),
        (host("kernel<<<1, 32, 0, stream>>>(y);"), []),
    ],
    "comparison": [
        (device("if (n < 3) return;"), ["n < 3 -> n <= 3"]),
        (device("bool b = n + 1 >= n * 2;"), ["n + 1 >= n * 2 -> n + 1 > n * 2"]),
        (
            device("if (n > 1 && y != z) return;"),
            ["n > 1 -> n >= 1", "n > 1 && y != z -> n > 1 || y != z"],
        ),
        (device("auto p = static_cast<Pack<float>*>(y);"), []),
        (host("auto f = [](auto&& a) { return a; };"), []),
    ],
    "bounds check dropped": [
        (device("if (n < 3) y[n] = 0;"), ["n < 3 -> true"]),
        (device("if (n >= 3) return;"), ["n >= 3 -> false"]),
        (
            device("if (n < 3 && m < 4) y[n] = 0;"),
            ["n < 3 && m < 4 -> true", "n < 3 && m < 4 -> m < 4", "n < 3 && m < 4 -> n < 3"],
        ),
        (device("y[n] = n < 3 ? x[n] : 0;"), ["n < 3 ? x[n] -> true ? x[n]"]),
        (device("if (done) return;"), []),
    ],
    "arithmetic operator": [
        (device("y[n] = a + b * c;"), ["a + b -> a - b", "b * c -> b / c"]),
        (device("n += 2;"), ["n += 2 -> n -= 2"]),
        (device("y[n] = -a;"), []),
        (device("const float* p = y;"), []),
    ],
    "constant off by one": [
        (device("y[n] = x[n + 4];"), ["n + 4 -> n + 5"]),
        (host("const int64_t rows = x.size(1);"), ["x.size(1) -> x.size(2)"]),
        (device("float sum = 0;"), []),
        (device("y[n] = 1.0f;"), []),
    ],
    "loop bound off by one": [
        (device("for (int i = 0; i < n; ++i) y[i] = 0;"), ["i < n -> i < n - 1"]),
        (device("for (auto each : list) y[i] = 0;"), []),
    ],
    "loop stride": [
        (device("for (int i = 0; i < n; ++i) y[i] = 0;"), ["++i -> i += 2"]),
        (device("for (int i = 0; i < n; i += 32) y[i] = 0;"), ["i += 32 -> i += 2 * 32"]),
        (device("++n;"), []),
    ],
    "rounded down": [
        (host("n = ceil_div<int64_t>(a, b);"), ["ceil_div<int64_t>(a, b) -> ((a) / (b))"]),
        (device("n = (a + TILE - 1) / TILE;"), ["(a + TILE - 1) / TILE -> (a) / TILE"]),
    ],
    "min for max": [
        (device("y[n] = fmaxf(a, b);"), ["fmaxf(a, b) -> fminf(a, b)"]),
        (device("y[n] = std::min(a, b);"), ["min(a, b) -> max(a, b)"]),
        (device("float max = 3;"), []),
    ],
    "factor dropped": [
        (device("y[n] = v * scale;"), ["v * scale -> v"]),
        (device("y[n] = row.weight[n] * v;"), ["row.weight[n] * v -> v"]),
        (device("y[n] = v / sum;"), ["v / sum -> v"]),
        (device("y[n] = expf(v - max);"), ["expf(v - max) -> expf(v)"]),
        (device("y[n] = v * w;"), []),
    ],
    "initial value": [
        (device("float sum = 0;"), ["float sum = 0 -> float sum = 1"]),
        (device("float max = -INFINITY;"), ["float max = -INFINITY -> float max = 0"]),
        (device("Sum sum = Sum{0};"), ["Sum sum = Sum{0} -> Sum sum = Sum{1}"]),
        (device("constexpr int N = 1;"), ["int N = 1 -> int N = 0"]),
        (device("y[n] = 0;"), []),
        (host("int value = 0; query(&value);"), []),
    ],
    "accumulator narrowed": [
        (device("float sum = 0; sum += y[n];"), ["float sum -> __half sum"]),
        (device("double sum = 0; sum += y[n];"), ["double sum -> float sum"]),
        (device("float other = 0; sum += other;"), []),
    ],
    "64-bit index in 32 bits": [
        (
            "__global__ void kernel(float* y, int64_t n) { int64_t i = int64_t{blockIdx.x} + n; }",
            [
                "int64_t n -> int n",
                "int64_t i -> int i",
                "int64_t{blockIdx.x} -> blockIdx.x",
            ],
        ),
        (device("f(int64_t{n + 1} * N);"), ["int64_t{n + 1} * N -> (n + 1) * N"]),
        # Values that fit are not a bug: neither of these grows with the grid's x.
        (device("const int64_t i = threadIdx.x + 3 * n;"), []),
        (device("const int64_t i = static_cast<int>(y[0]) * BLOCK;"), []),
        (device("const int64_t i = threadIdx.x + m;"), ["int64_t i -> int i"]),
        (device("int64_t i = threadIdx.x;"), ["int64_t i -> int i"]),
        (device("f(int64_t{blockIdx.y} * BLOCK);"), []),
        (
            device("f(int64_t{blockIdx.y} * n);"),
            ["int64_t{blockIdx.y} * n -> blockIdx.y * n"],
        ),
    ],
    "other dimension": [
        (device("n = threadIdx.x;"), ["threadIdx.x -> threadIdx.y"]),
        (device("n = place.x;"), []),
    ],
    "transposed": [
        (device("y[n] = tile[ty][tx];"), ["tile[ty][tx] -> tile[tx][ty]"]),
        (device("y[n] = x[row * cols + col];"), ["row * cols + col -> col * cols + row"]),
        (device("float tile[A][B];"), []),
    ],
    "grid or block size": [
        (
            host("kernel<<<grid, BLOCK, 0, stream>>>(y);"),
            ["grid -> (grid) - 1", "BLOCK -> (BLOCK) / 2"],
        ),
        (
            host("const dim3 grid(a, b); kernel<<<grid, 1>>>(y);"),
            ["grid -> dim3(grid.x, 1, grid.z)"],
        ),
    ],
    "validation dropped": [
        (host('STD_TORCH_CHECK(a < b, "x: ", a);'), ['STD_TORCH_CHECK(a < b, "x: ", a) -> ']),
        (host("check_pair(x, y);"), ["check_pair(x, y) -> "]),
        (
            host('check(x, "x").on_gpu().rank(2).contiguous();'),
            [
                'check(x, "x").on_gpu().rank(2) -> check(x, "x").on_gpu()',
            ],
        ),
        (host('check_launch("kernel");'), []),
    ],
    "device check dropped": [
        (
            host('check(x, "x").on_gpu().rank(2);'),
            ['check(x, "x").on_gpu() -> check(x, "x")'],
        ),
        # If both are on one device, the other tensor's check refuses x on the host as well.
        (host('check(x, "x").on_gpu(); check(y, "y").on_gpu().like(x, "x");'), []),
        (
            host('check(y, "y").on_gpu(); check(y, "y").same_device(x, "x");'),
            ['check(y, "y").same_device(x, "x") -> check(y, "y")'],
        ),
        (
            host('check(x, "x").on_gpu(); check(y, "y").like(x, "x");'),
            ['check(x, "x").on_gpu() -> check(x, "x")'],
        ),
    ],
    "contiguity check dropped": [
        (
            host('check(x, "x").rank(2).contiguous();'),
            ['check(x, "x").rank(2).contiguous() -> check(x, "x").rank(2)'],
        ),
    ],
    "alignment check dropped": [
        (host("if (!is_aligned(x, 16)) return v1(x);"), ["is_aligned(x, 16) -> true"]),
    ],
    "empty input not handled": [
        (host("if (n == 0) return y;"), ["if (n == 0) return y -> "]),
        (host("if (x.numel() == 0 || m == 0) return y;"), [
            "if (x.numel() == 0 || m == 0) return y -> "
        ]),
        (device("if (n == 0) return;"), []),
    ],
    "device guard dropped": [
        (host("const DeviceGuard guard(x);"), ["const DeviceGuard guard(x) -> "]),
    ],
    "default stream": [
        (host("run(current_stream(x));"), ["current_stream(x) -> nullptr"]),
    ],
    "event wait removed": [
        (host("cudaStreamWaitEvent(a, e, 0);"), ["cudaStreamWaitEvent(a, e, 0) -> "]),
        (
            host('check_cuda(cudaStreamWaitEvent(a, e, 0), "wait");'),
            ['check_cuda(cudaStreamWaitEvent(a, e, 0), "wait") -> '],
        ),
        (host("if (cudaStreamWaitEvent(a, e, 0)) return;"), []),
    ],
}  # fmt: skip

CASES = [(kind, source, out) for kind, cases in EXAMPLES.items() for source, out in cases]


@pytest.mark.parametrize(("kind", "source", "expected"), CASES)
def test_a_kind_changes_what_it_says(kind: str, source: str, expected: list[str]) -> None:
    assert changes(source, kind) == expected


def test_every_kind_is_tried_and_explained() -> None:
    assert set(EXAMPLES) == {kind.name for kind in KINDS}
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.explanation.endswith(".")
        assert any(out for _, out in EXAMPLES[kind.name])


SEVERAL = """\
// n + 1 in a comment
#define UNUSED (n + 2)
#if 0
int off(int n) { return n + 3; }
#endif
constexpr int SIZE = 3 + 4;
__device__ int used(int n) { static_assert(1 + 1 == 2); return n + 5; }
__device__ int unused(int n) { return n + 6; }
__global__ void kernel(int* y) { y[0] = used(y[0]); printf("n + 7"); }
Tensor launcher(const Tensor& x) { kernel<<<1, 1>>>(nullptr); return x; }
Tensor other(const Tensor& x) { STD_TORCH_CHECK(true, "n", 8 + 9); return unused(x.numel() + 1); }
RUNG(day01, launcher, "(Tensor x) -> Tensor");
RUNG(day01, other, "(Tensor x) -> Tensor");
"""


def test_nothing_is_changed_that_is_not_run() -> None:
    read = outline(SEVERAL)
    found = derive.mutants(Path("a.cu"), read, read.reached(["launcher"]))
    assert [m.identity for m in found if m.kind.name == "arithmetic operator"] == [
        "used: arithmetic operator: `n + 5` -> `n - 5`"
    ]
    assert {m.function for m in found} <= {"used", "kernel", "launcher"}


def test_a_source_is_trimmed_to_some_operators() -> None:
    text = trimmed(SEVERAL, ["launcher"])
    assert text.count("\n") == SEVERAL.count("\n")
    assert "used(int n) { static_assert" in text and "RUNG(day01, launcher" in text
    assert "unused(" not in text and "other" not in text
    assert "constexpr int SIZE" in text
    assert trimmed("int f() { return 1; }\n", ["g"]) == "int f() { return 1; }\n"


def test_an_overloaded_operator_is_used_without_its_name() -> None:
    source = (
        "__device__ Half operator+(Half a, Half b) { return b * a; }\n"
        "Tensor f(const Tensor& x) { return x + x; }\n"
        'RUNG(d, f, "(Tensor x) -> Tensor");\n'
    )
    assert trimmed(source, ["f"]) == source
    assert {m.function for m in mutants_of(source)} == {"f", "operator+"}


def test_files_that_are_linked_together_use_each_other() -> None:
    launch = "Tensor first(const Tensor& x) { return helper(x); }"
    files = {
        Path("a.cu"): outline(f'{launch}\nRUNG(day01, first, "(Tensor x) -> Tensor");\n'),
        Path("b.cu"): outline("Tensor helper(const Tensor& x) { return x; }\nint other() {}\n"),
        Path("c.cu"): outline("int third() { return 3; }\n"),
    }
    found = reached_together(files, ["first"])
    assert {path.name: [d.name for d in used] for path, used in found.items()} == {
        "a.cu": ["first"],
        "b.cu": ["helper"],
    }
    assert trimmed("int f() { return 1; }\nRUNG(d, g, s);\n", [], ["f"]).startswith("int f()")


def test_a_device_check_that_no_call_reaches_is_not_dropped(tmp_path: Path) -> None:
    """PyTorch refuses the only tensor of an operator if it is on another device."""
    launchers = """
    Tensor one(const Tensor& x) { check(x, "x").on_gpu(); return x; }
    Tensor two(const Tensor& x, const Tensor& y) { check(x, "x").on_gpu(); return one(x); }
    Tensor many(std::vector<Tensor> x) { check(x, "x").on_gpu(); return one(x[0]); }
    Tensor host(const Tensor& x, const Tensor& y) { check(x, "x").on_host(); return x; }
    RUNG(day01, one, "(Tensor x) -> Tensor");
    RUNG(day01, two, "(Tensor x, Tensor? y) -> Tensor");
    RUNG(day01, many, "(Tensor[] x) -> Tensor");
    STABLE_TORCH_LIBRARY_FRAGMENT(day01, m) { m.def("host(Tensor x, Tensor y) -> Tensor"); }
    STABLE_TORCH_LIBRARY_IMPL(day01, CPU, m) { m.impl("host", TORCH_BOX(&host)); }
    """
    path = tmp_path / "a.cu"
    path.write_text(launchers)
    day = dataclasses.replace(DAYS[0], folder=tmp_path, source=path, extra_sources=())
    found = [m.function for m in derive.mutants_of(day) if m.kind.name == DEVICE_CHECK]
    assert found == ["two", "many"]


def with_headers(folder: Path) -> Day:
    """Return a day of two sources: one includes a header and, with the other, the headers that this
    includes."""
    texts = {
        "inner.cuh": "#pragma once\nint inner(int n) {\n  return n + 1;\n}\n",
        "outer.cuh": '#pragma once\n#include "inner.cuh"\nint outer(int n) { return n + 2; }\n'
        "int unused(int n) { return n + 3; }\n",
        "a.cu": '// first\n#include "outer.cuh"  // and inner\n#include "inner.cuh"\n'
        "#include <mutex>\nTensor a(Tensor x) { return outer(inner(x)); }\n"
        'RUNG(day01, a, "(Tensor x) -> Tensor");\n',
        "b.cu": '#include "inner.cuh"\nTensor b(Tensor x) { return inner(x); }\n'
        'RUNG(day01, b, "(Tensor x) -> Tensor");\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    extra = (folder / "b.cu",)
    return dataclasses.replace(DAYS[0], folder=folder, source=folder / "a.cu", extra_sources=extra)


def test_headers_stand_in_a_source_where_it_first_includes_them(tmp_path: Path) -> None:
    day = with_headers(tmp_path)
    assert own_headers(day.source) == [tmp_path / "inner.cuh", tmp_path / "outer.cuh"]
    files = [day.source, *own_headers(day.source)]
    texts = {path: path.read_text() for path in files}
    expected = f"""\
// first
#line 1 "{tmp_path}/outer.cuh"

#line 1 "{tmp_path}/inner.cuh"

int inner(int n) {{
  return n + 1;
}}

#line 3 "{tmp_path}/outer.cuh"
int outer(int n) {{ return n + 2; }}
int unused(int n) {{ return n + 3; }}

#line 3 "{tmp_path}/a.cu"

#include <mutex>
"""
    assert inlined(day.source, texts).startswith(expected)
    del texts[tmp_path / "inner.cuh"]
    assert inlined(day.source, texts).count('#include "inner.cuh"') == 2


def test_headers_have_mutants(tmp_path: Path) -> None:
    found = derive.mutants_of(with_headers(tmp_path))
    assert [m.identity for m in found if m.kind.name == "arithmetic operator"] == [
        "inner.cuh: inner: arithmetic operator: `n + 1` -> `n - 1`",
        "outer.cuh: outer: arithmetic operator: `n + 2` -> `n - 2`",
    ]


def test_a_verdict_depends_on_the_code_of_headers(tmp_path: Path) -> None:
    campaign: Any = SimpleNamespace(day=with_headers(tmp_path), _key="")
    campaign._texts = lambda: _DayCampaign._texts(campaign)
    first, second = derive.mutants_of(campaign.day)[:2]
    keys = [_DayCampaign._mutant_key(campaign, mutant, []) for mutant in (first, second)]
    assert keys[0] != keys[1]
    header = tmp_path / "outer.cuh"
    header.write_text(f"// a comment more\n{header.read_text()}")
    assert _DayCampaign._mutant_key(campaign, first, []) == keys[0]
    header.write_text(header.read_text().replace("n + 3", "n + 4"))
    assert _DayCampaign._mutant_key(campaign, first, []) != keys[0]


def test_an_identity_does_not_depend_on_other_code() -> None:
    plain = device("y[n] = a + b; y[0] = a + b;")
    moved = "// a line more\n\nint before(int a) { return a + 1; }\n" + plain
    named = [m.identity for m in mutants_of(plain, "arithmetic operator")]
    assert named == [
        "kernel: arithmetic operator: `a + b` -> `a - b`",
        "kernel: arithmetic operator: `a + b` -> `a - b`, 2nd",
    ]
    assert set(named) <= {m.identity for m in mutants_of(moved)}


def test_a_method_is_named_with_its_type() -> None:
    source = "struct Half {\n  __device__ int operator()(int n) const { return n / 2; }\n};\n"
    assert {m.function for m in mutants_of(source)} == {"Half::operator"}


def test_the_standard_mutants_have_every_kind_and_every_function() -> None:
    day = next(day for day in DAYS if len(derive.mutants_of(day)) > 2 * derive.STANDARD)
    found = [m for m in derive.mutants_of(day) if m.source == day.source]
    chosen = derive.standard(found)
    assert len(chosen) == derive.STANDARD
    assert {m.kind.name for m in chosen} == {m.kind.name for m in found}
    assert chosen == derive.standard(found[::-1])


def test_a_sample_is_the_same_for_a_seed() -> None:
    found = derive.mutants_of(DAYS[0])
    assert derive.sample(found, 3, 1) == derive.sample(found, 3, 1)
    assert len({tuple(m.identity for m in derive.sample(found, 3, s)) for s in range(9)}) > 1
    assert derive.sample(found, 10_000, 1) == found


@pytest.mark.parametrize(("number", "text"), [(2, "2nd"), (3, "3rd"), (11, "11th"), (21, "21st")])
def test_ordinals(number: int, text: str) -> None:
    assert derive.ordinal(number) == text


def verdict(status: TrialStatus, by: str = "", name: str = "f") -> Verdict:
    return Verdict(name, "comparison", "a.cu", 1, status, by)


def test_a_score_counts_only_what_is_not_equivalent() -> None:
    verdicts = [verdict(KILLED, "result")] * 3 + [verdict(SURVIVED, name="left")]
    verdicts += [verdict(EQUIVALENT, "declared"), verdict(STILLBORN)]
    found = score(5, verdicts)
    assert (found.made, found.counted, found.rate) == (5, 4, 0.75)
    assert found.killed == {"result": 3} and found.survived == ["left"]
    assert score(5, [verdict(EQUIVALENT)]).rate == 1


def test_the_ledger_knows_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path))
    first = KnownVerdicts("day01")
    first.put("key", dataclasses.asdict(verdict(KILLED, "result")))
    with open(first.path, "a") as file:
        file.write('{"key": "cut sh')
    assert KnownVerdicts("day01").verdict("key") == verdict(KILLED, "result")
    assert KnownVerdicts("day01").verdict("other") is None
    assert KnownVerdicts("day01", fresh=True).verdict("key") is None


CHOICE = """
int parts_for(int n) {
  return n / 8 > 4 ? 4 : n / 8 + 1;
}
__global__ void kernel(int* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = n / 8;
}
void launch(int* y, int n) {
  const int parts = parts_for(n + 1);
  kernel<<<parts, 32>>>(y, n + 2);
}
"""


def test_a_heuristic_covers_its_choice_and_its_calls(tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text(CHOICE)
    names = {"parts_for": "chooses", "kernel": "computes", "gone_for": "is not there"}
    day = Day(1, tmp_path, "T", "t", ("x",), tmp_path / "x.cu", heuristics=names)
    found = derive.mutants_of(day)
    mine = {m.identity: covered(day, m) for m in found}
    assert mine["parts_for: arithmetic operator: `n / 8` -> `n * 8`"] == "chooses"
    assert mine["launch: arithmetic operator: `n + 1` -> `n - 1`"] == "chooses"
    assert mine["launch: arithmetic operator: `n + 2` -> `n - 2`"] == ""
    assert not any(why for identity, why in mine.items() if "grid or block size" in identity)
    assert [text.rpartition(": ")[2] for text in unfit(day, found)] == ["kernel", "gone_for"]


def test_a_build_in_which_the_original_fails_judges_no_mutant() -> None:
    rung = SimpleNamespace(pair=("problem", "v1"), operators=frozenset({"v1"}))
    day: Any = SimpleNamespace(
        campaign=SimpleNamespace(trial_process=lambda variant: None),
        _check_original=lambda *_: Result("failed", "v1", "two runs differ"),
    )
    mutant: Any = None
    with pytest.raises(Unwatched, match="where v1 as it is does not pass: two runs differ"):
        _DayCampaign._watched(day, "trace", mutant, [rung], {"v1"}, "mutant")  # type: ignore[list-item]


def test_a_watched_build_that_is_too_slow_kills_no_mutant() -> None:
    rung = SimpleNamespace(pair=("problem", "v1"), operators=frozenset({"v1"}))
    day: Any = SimpleNamespace(
        campaign=SimpleNamespace(
            trial_process=lambda variant: SimpleNamespace(run=lambda trial: Result("late", "v1"))
        ),
        builds=lambda variant: None,
        _check_original=lambda *_: Result("passed", seconds=2.0),
        _build=lambda *_: ({}, Path("library.so")),
        _trial=lambda library, pairs, limit: Trial("day", str(library), pairs, limit=limit),
    )
    mutant: Any = None
    with pytest.raises(Unwatched, match="no end after 80 s"):
        _DayCampaign._watched(day, "trace", mutant, [rung], {"v1"}, "mutant")  # type: ignore[list-item]


def test_a_mutant_that_the_card_can_no_longer_run_is_seen() -> None:
    def came(status: str, *rungs: Status) -> Result:
        return Result(
            status, ran=[Ran("p", "ab"[i], rung, 1.0, []) for i, rung in enumerate(rungs)]
        )

    usual = came("passed", "PASS", "SKIP")
    assert _no_longer_run(usual, came("skipped", "SKIP", "SKIP")) == "a"
    assert _no_longer_run(usual, came("passed", "PASS", "SKIP")) == ""


def test_a_mutant_that_the_card_can_no_longer_run_on_a_case_is_seen() -> None:
    def came(*left_out: int) -> Result:
        ran = [Ran("p", "ab"[i], "PASS", 1.0, [], count) for i, count in enumerate(left_out)]
        return Result("passed", ran=ran)

    assert _leaves_out_more(came(0, 1), came(0, 2)) == "b"
    assert _leaves_out_more(came(0, 1), came(0, 1)) == ""
    assert _leaves_out_more(came(), came(1)) == ""  # the original's check ended earlier


def test_a_call_without_an_end_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of a launcher, which the runtime does not see."""

    def endless(*given: object) -> None:
        while True:
            pass

    def run(given: Trial, platform: Platform, channel: Channel) -> None:
        torch._ops.OpOverloadPacket.__call__ = endless  # type: ignore[method-assign, assignment]
        run_trial._Calls()
        channel.emit(Stage("limit", "checking"))
        torch.ops.aten.add(1, 1)

    monkeypatch.setattr(run_trial, "CALL_LIMIT", 0.2)
    monkeypatch.setattr(trial_server, "run_trial", run)
    running = trial_server._Running(0, Trial("day", "library", (), limit=60), detect("cpu"))
    result = running.take()
    while result is None:
        time.sleep(0.05)
        result = running.take()
    assert (result.status, result.rung) == ("late", "limit")
    assert result.reason.startswith("no end after 200 s, while limit")


def test_the_files_that_affect_a_verdict_are_there(tmp_path: Path) -> None:
    day = next(day for day in discover()[0] if day.number == 1)
    platform = SimpleNamespace(compiler_version="g++", torch="2")
    campaign: Any = SimpleNamespace(choice=Choice(), platform=platform)
    key = _DayCampaign(campaign, day, tmp_path)._common_key()
    assert key == _DayCampaign(campaign, day, tmp_path)._common_key()
