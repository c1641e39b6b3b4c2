"""The rewriter of the CPU backend: its edits, the code that it leaves unchanged, its refusals."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.base.paths import ROOT
from common.cpu import backend
from common.cpu.conditions import Macros
from common.cpu.lexer import tokenize
from common.cpu.rewrite import RewriteError, rewrite, rewrite_tree

KERNELS = Path(__file__).resolve().parent.parent / "cpu_kernels"


def _rewritten(text: str) -> str:
    """Return the rewritten text without its #line, after checking its line numbers."""
    output = rewrite(text, "day.cu")
    first, _, rest = output.partition("\n")
    assert first == '#line 1 "day.cu"'
    assert rest.count("\n") == text.count("\n")
    return rest


def _refusal(text: str) -> RewriteError:
    with pytest.raises(RewriteError) as caught:
        rewrite(text, "day.cu")
    return caught.value


@pytest.mark.parametrize("path", sorted(KERNELS.iterdir()), ids=lambda p: p.name)
def test_tokens_join_to_the_same_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "".join(token.text for token in tokenize(text)) == text
    _rewritten(text)


UNTOUCHED = [
    "int x;",
    'const char* s = "k<<<1, 2>>>(x);";',
    'auto s = R"(k<<<1, 2>>>(x) __shared__ asm("ret;"))";',
    'auto s = R"d(printf("\\") )" )d";',
    "// k<<<1, 2>>>(x); __shared__ int y;",
    '/* __shared__ int y;\n asm("") */',
    "// a comment that goes on \\\n k<<<1, 2>>>(x);",
    "auto c = '\"'; auto d = '\\''; int n = 1'000'000;",
    "template <class T> std::vector<std::vector<std::vector<T>>> f();",
    "int y = x >> 3; x <<= 2; y = a < b && c > d;",
    '#if 0\nk<<<1, 2>>>(x); asm("ret;");\n#endif',
    '#ifndef CUDA_ON_CPU\nasm volatile("ret;");\n#endif',
    '#if !CUDA_ON_CPU\nasm("ret;");\n#elif 1\nint x;\n#else\nasm("ret;");\n#endif',
    '#ifdef CUDA_ON_CPU\nint x;\n#else\nasm("ret;");\n#ifdef X\nasm("");\n#endif\n#endif',
    '#if !defined(CUDA_ON_CPU) || defined __HIPCC__\nasm("ret;");\n#endif',
    '#ifdef CUDA_ON_CPU\nint x;\n#elif __CUDA_ARCH__ >= 800\nasm("ret;");\n#endif',
    "#ifndef CUDA_ON_CPU\n#include <cub/cub.cuh>\n#endif",
    "#include <cuda_fp16.h>\n#include <torch/csrc/stable/tensor.h>",
    "__attribute__((format(printf, 1, 2))) void log(const char*, ...);",
    "std::cout << x; object.printf(1); stream->asm_text();",
    'STABLE_TORCH_LIBRARY(day05, m) { m.def("f(Tensor x) -> Tensor"); }',
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_left_alone(text: str) -> None:
    assert _rewritten(text) == text


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("v", "v"),
        ("v[i]", "v[i]"),
        ("*p", "*p"),
        ("(*p).v", "(*p).v"),
        ("p->v[2]", "p->v[2]"),
        ("if (c) v", "v"),
        ("for (;;) { v", "v"),
        ("float2 v", None),
        ("auto v", None),
        ("T* v", None),
        ("int v[2]", None),
        ("float2 u, v", None),
    ],
)
def test_assignments_of_braced_pairs(target: str, named: str | None) -> None:
    close = "}" if "{" in target else ""
    text = f"__device__ void f() {{ {target} = {{a, b}}; {close} }}"
    got = _rewritten(text)
    if named is None:
        assert got == text
    else:
        assert f"= ::std::remove_reference_t<decltype({named})>{{a, b}};" in got
    assert _rewritten(text.replace("__device__ ", "")) == text.replace("__device__ ", "")


def test_clock_in_device_code() -> None:
    device, host = "auto t = clock();", "auto t = clock() + std::clock() + x.clock();"
    got = _rewritten(f"__device__ void f() {{ {device} }} void g() {{ {host} }}")
    assert "auto t = ::cudacpu::device_clock(); }" in got
    assert host in got


# The kernel expression of each launch, found by walking back from <<<.
LAUNCHES = {
    "void f() { k<<<1, 2>>>(x); }": "k",
    "void f() { ::k<<<1, 2>>>(x); }": "::k",
    "void f() { a::b<int>::k<T, 3><<<1, 2>>>(x); }": "a::b<int>::k<T, 3>",
    "void f() { k<g<h<int>>><<<1, 2>>>(x); }": "k<g<h<int>>>",
    "void f() { k<(a > b), x[3]><<<1, 2>>>(x); }": "k<(a>b), x[3]>",
    "void f() { k<sizeof(int) * 2><<<1, 2>>>(x); }": "k<sizeof(int)*2>",
    "void f() { return k<<<1, 2>>>(x); }": "k",
    "void f() { if (a) k<<<1, 2>>>(x); }": "k",
    "void f() { if (a < b) (*k)<<<1, 2>>>(x); }": "(*k)",
    "void f() { else_(a); for (;;) k<<<1, 2>>>(x); }": "k",
    "void f() { table[i][j]<<<1, 2>>>(x); }": "table[i][j]",
    "void f() { o.p->kernels.at(3)<<<1, 2>>>(x); }": "o.p->kernels.at(3)",
    "void f() { this->k<<<1, 2>>>(x); }": "this->k",
    "void f() { o.template k<3><<<1, 2>>>(x); }": "o.template k<3>",
    "void f() { static_cast<void (*)(int)>(k)<<<1, 2>>>(x); }": "static_cast<void(*)(int)>(k)",
    "void f() { (a ? k : l)<<<1, 2>>>(x); }": "(a?k:l)",
    "void f() { CHECK(k<T><<<1, 2>>>(x), y); }": "k<T>",
    "void f() { auto r = [&] { k<<<1, 2>>>(x); }; }": "k",
    "void f() { k // why <<<\n <<<1,\n 2>>>(\n x); }": "k",
    "int main() { k<<<1, 2>>>(x); return; }": "k",
    "#define LAUNCH(k, ...) \\\n  k<<<1, 2>>>(__VA_ARGS__)": "k",
}


@pytest.mark.parametrize("text", LAUNCHES)
def test_the_kernel_of_a_launch(text: str) -> None:
    got = _rewritten(text)
    kernel = LAUNCHES[text]
    assert f"CUDACPU_TEXT({kernel}), __FILE__" in got
    assert "<<<" not in re.sub(r"//.*", "", got)
    # The value of an expression is taken at once: a graph may run when its variables are gone.
    if re.fullmatch(r"[\w:]+(<.*>)?", kernel):
        assert "[=](auto&... cudacpu_args) { " in got
    else:
        value = re.search(r"\[cudacpu_kernel = (.*)\]\(auto&\.\.\. cudacpu_args\)", got)
        assert value and value[1].replace(" ", "") == kernel.replace(" ", "")
        assert "{ cudacpu_kernel(cudacpu_args...); }" in got


def test_parentheses_around_the_name_of_a_kernel() -> None:
    assert "[=](auto&... cudacpu_args) { ((a::k<T>))(" in _rewritten(
        "v f() { ((a::k<T>))<<<1, 2>>>(); }"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("1, 2", "1, 2"),
        ("dim3(1, 2), {3, 4}, n * sizeof(T), s", "dim3(1, 2), {3, 4}, n * sizeof(T), s"),
        ("1, f<A<B<int>>>(3)", "1, f<A<B<int>>>(3)"),
        ("n >> 2, a < b ? 1 : 2", "n >> 2, a < b ? 1 : 2"),
        ("(n + 255) / 256, 256, 0,\n stream", "(n + 255) / 256, 256, 0,\n stream"),
    ],
)
def test_the_configuration_of_a_launch(config: str, expected: str) -> None:
    got = _rewritten(f"void f() {{ k<<<{config}>>>(x), l<<<3, 4>>>(y); }}")
    assert f"k(cudacpu_args...); }}, {expected})(x)" in got
    assert "l(cudacpu_args...); }, 3, 4)(y)" in got


@pytest.mark.parametrize(
    "launch",
    ["k << <3, 4 >> >(x)", "k << < 3, 4 > > >(x)", "k<T> << <3, f<int>(4) > >> (x)"],
)
def test_launches_written_with_blanks(launch: str) -> None:
    got = _rewritten(f"void f() {{ {launch}; int y = a >> 2; }}")
    assert re.search(
        r"\(cudacpu_args\.\.\.\); }, +3, (4|f<int>\(4\)) *\) *\(x\); int y = a >> 2", got
    )


def test_arguments_that_their_parameter_gives_a_type() -> None:
    got = _rewritten("void f() { k<<<1, 2>>>(NULL, {1, {a}}, x ? 0 : 1, -0, g(0, {2})); }")
    braced = "::cudacpu::braced([=](auto cudacpu_type) { return typename decltype(cudacpu_type)"
    assert (
        f"(::cudacpu::Null{{}}, {braced}::type{{1, {{a}}}}; }}), x ? 0 : 1, -0, g(0, {{2}}))" in got
    )
    assert "int_or_zero" not in got
    got = _rewritten("void f() { k<T><<<1, 2>>>(x, 0); }")
    fits = "[](auto&... cudacpu_args) -> decltype(k<T>(cudacpu_args...)) {}"
    assert f"::cudacpu::int_or_zero({fits}, [=](auto&... cudacpu_args) {{ k<T>(" in got
    assert "(cudacpu_args...); }), 1, 2)(x, ::cudacpu::Zero{})" in got


def test_lines_of_launches() -> None:
    got = _rewritten("void f() {\n  k\n  <<<1, 2>>>(x);\n}\n#define L k<<<1, 2>>>(x)")
    assert "__FILE__, 2}" in got
    assert "__FILE__, __LINE__}" in got  # in a macro: where it is used


@pytest.mark.parametrize(
    ("declaration", "names"),
    [
        ("__shared__ float a[N];", ["a"]),
        ("__shared__ float a[N][M + 1], b[2];", ["a", "b"]),
        ("volatile __shared__ int x, *y;", ["x", "y"]),
        ("__shared__ static __shared__ int x;", ["x"]),
        ("static __shared__ alignas(128) std::array<T, N> s[2];", ["s"]),
        ("__shared__ __align__(16) typename Foo<T, 3>::Storage s;", ["s"]),
        ("__shared__ float (*p)[32];", ["p"]),
        ("__shared__ struct { int a, b; } s;", ["s"]),
        ("float __shared__ a[3];", ["a"]),
    ],
)
def test_static_shared_variables(declaration: str, names: list[str]) -> None:
    got = _rewritten(f"__device__ void f() {{ {declaration} }}")
    assert re.findall(r"auto& (\w+) = cudacpu_shared_0\.(\w+);", got) == [(n, n) for n in names]
    assert "CUDACPU_SHARED(0, " in got
    assert "__shared__" not in got


def test_dynamic_shared_variables() -> None:
    got = _rewritten(
        "__global__ void f() { extern __shared__ __align__(16) float4 v[][3]; "
        "extern __shared__ alignas(8) double d[]; }"
    )
    assert re.sub(r" +", " ", got).endswith(
        "typedef float4 cudacpu_type_0[][3]; "
        "[[maybe_unused]] extern cudacpu_type_0 cudacpu_extern_shared_v; "
        "auto& v = ::cudacpu::dynamic_shared<cudacpu_type_0>(); "
        "typedef double cudacpu_type_1[]; "
        "[[maybe_unused]] extern cudacpu_type_1 cudacpu_extern_shared_d; "
        "auto& d = ::cudacpu::dynamic_shared<cudacpu_type_1>(); }"
    )


def test_shared_variables_at_file_scope() -> None:
    got = _rewritten(
        "extern __shared__ float dyn[];\nnamespace a {\nstatic __shared__ int s[4];\n"
        "__device__ int f() { return s[0]; }\n}\n"
        "__global__ void k() { auto g = [=] { return dyn[0]; }; }\n"
        "__global__ void hides(int dyn) { dyn = 1; }\nvoid host() { int dyn; }\n"
    )
    got = re.sub(r" +", " ", got)
    assert " typedef float cudacpu_type_of_dyn[];" in " " + got
    assert "CUDACPU_SHARED_PLACE(of_s, int s[4])" in got
    assert (
        "int f() { auto& s = ::cudacpu::shared<cudacpu_type_of_s>(cudacpu_variable_of_s).s; return"
        in got
    )
    assert "auto& dyn = ::cudacpu::dynamic_shared<cudacpu_type_of_dyn>(); auto g = [=, &dyn]" in got
    assert got.count("auto& dyn") == 1


def test_lambdas_that_copy_see_shared_variables() -> None:
    got = _rewritten(
        "__device__ void f() { __shared__ int a[2], b; { __shared__ int c; }"
        " auto g = [=](int i) { return a[i] + c; }; auto h = [=, &x] { return b; };"
        " auto j = [=] { return x; }; auto k = [&] { return a; }; }"
    )
    assert "[=, &a](int i)" in got
    assert "[=, &b, &x]" in got
    assert "[=] { return x; }" in got


@pytest.mark.parametrize(
    ("kernel", "parameters", "name", "limits"),
    [
        ("__global__ void f(int n = 2) {}", "int n", "f", "0"),
        ("template <class T, int N = (4 > 2)> __global__ void f(T* p) {}", "T*p", "f<T, N>", "0"),
        ("template <class... Ts> __global__ void f(Ts... x) {}", "Ts...x", "f<Ts...>", "0"),
        ("template <template <class> class C, auto V> void __global__ f() {}", "", "f<C, V>", "0"),
        ("template <> __global__ void f<float>(float* p) {}", "float*p", "f<float>", "0"),
        ("__global__ void __launch_bounds__(2 * N, 2) f() {}", "", "f", "2*N"),
        ("__global__ void __cluster_dims__(2, N + 1) f() {}", "", "f", "0, 2, N+1"),
        ('extern "C" __global__ void f(int (*g)(int), A b) {}', "int(*g)(int), A b", "f", "0"),
        ("template <class T> requires(N > 2) __global__ void f(T x) {}", "T x", "f<T>", "0"),
    ],
)
def test_kernels_tell_who_they_are(kernel: str, parameters: str, name: str, limits: str) -> None:
    """The type chooses among kernels of one name, and functions of the C library."""
    entry = f"(static_cast<void (*)({parameters})>(&{name})), {limits}"
    assert f"CUDACPU_ENTRY({entry})" in _rewritten(kernel)


def test_a_kernel_that_cannot_be_named_has_no_address() -> None:
    got = _rewritten("template <typename, int> __global__ void f() {}")
    assert "CUDACPU_ENTRY((nullptr), 0)" in got
    assert "CUDACPU_ENTRY((nullptr), 0)" in _rewritten("__global__ void f(int f) {}")


@pytest.mark.parametrize(
    ("declaration", "mark"),
    [
        ("__device__ int count;", "VARIABLE "),
        ("static __device__ volatile unsigned rows[4], *more;", "VARIABLE "),
        ("__device__ __align__(16) float table[2] = {1, 2};", "VALUE "),
        ("namespace a { __device__ int x, y = 3; }", "VALUE "),
        ("__device__ const int limit = 3;", ""),
        ("extern __device__ int count;", ""),
        ("__managed__ __device__ int shared_with_host;", ""),
        ("template <class T> __device__ int size;", ""),
        ("__device__ Complex sum;", ""),
        ("__device__ int f(int x);", ""),
        ("struct A { __device__ int f(); __device__ static int x; };", ""),
        ("void f() { static __device__ int inner; }", ""),
    ],
)
def test_device_variables_are_put_apart(declaration: str, mark: str) -> None:
    got = _rewritten(declaration)
    assert got.count("CUDACPU_DEVICE_") == bool(mark)
    assert f"CUDACPU_DEVICE_{mark}" in got or not mark


@pytest.mark.parametrize(
    ("statement", "wrapped"),
    [
        ("cudaFree(p);", True),
        ("if (p) cudaFree(p);", True),
        ("else ::cudaMemcpy(a, b, size(c), kind);", True),
        ("auto e = cudaFree(p);", False),
        ("CHECK(cudaFree(p));", False),
        ("(void)cudaFree(p);", False),
        ("return cudaFree(p);", False),
        ("cudaGetLastError();", False),
        ("cudaFree(p), q = 0;", False),
    ],
)
def test_calls_whose_error_is_not_looked_at(statement: str, wrapped: bool) -> None:
    got = _rewritten(f"void f() {{ int x; {statement} }}")
    assert ("::cudacpu::unchecked(" in got) is wrapped
    assert (', {__FILE__, 1}, "cuda' in got) is wrapped


def test_other_names() -> None:
    got = _rewritten(
        '__device__ __noinline__ void f() { printf("x"); ::printf("y"); std::printf("z"); }\n'
        "__attribute__((__noinline__)) void g() { cudaLaunchKernel(f, 1, 1, 0); }\n"
        "STABLE_TORCH_LIBRARY_IMPL(day05, CUDA, m) { }"
    )
    assert '::cudacpu::printf("x"); ::cudacpu::printf("y"); ::cudacpu::printf("z");' in got
    assert "__attribute__((noinline)) void f" in got
    assert "__attribute__((__noinline__)) void g" in got
    assert "::cudacpu::cudaLaunchKernel({__FILE__, 2}, f, 1, 1, 0)" in got
    assert "STABLE_TORCH_LIBRARY_IMPL(day05, CPU, m)" in got


def test_loops_that_wait_give_way() -> None:
    got = _rewritten(
        "__global__ void f(volatile int* x) { while (*x == 0); while (*x == 1) {}"
        " do { y(); } while (*x); do z(); while (*x); while (*x) y(); }\n"
        "void host() { while (wait()); }"
    )
    spin = "::cudacpu::spin_wait()"
    assert got.count(spin) == 5
    assert f"while ((*x == 0) && {spin});" in got
    assert f"while ((*x == 1) && {spin}) {{}}" in got
    assert f"do {{ y(); }} while ((*x) && {spin}); do z(); while ((*x) && {spin});" in got
    assert f"while ((*x) && {spin}) y();" in got


_IN_STEP = "::cudacpu::warp_in_step(), "


@pytest.mark.parametrize(
    ("statements", "noted"),
    [
        ("v[t] += v[t + 2]; v[t] += v[t + 1];", 1),
        ("if (n > 1) v[t] = max(v[t], v[t + 2]); if (n > 0) v[t] = max(v[t], v[t + 1]);", 1),
        ("v[t] += v[t + 4]; v[t] += v[t + 2]; v[t] -= v[t + 1];", 2),
        ("v[t] += v[t + 2];", 0),
        ("v[t] += v[t + 2]; __syncwarp(); v[t] += v[t + 1];", 0),
        ("v[t] += v[t + 2]; tile.sync(); v[t] += v[t + 1];", 0),
        ("v[t] += v[t]; v[t] += 2 * v[t];", 0),  # of no other thread
        ("p[t] += p[t + 2]; p[t] += p[t + 1];", 0),  # not volatile: the debugger names the race
        ("n = v[t + 2]; v[t] = n; n = v[t + 1];", 0),
        ("n += v[t + 2]; v[t] = n; n += v[t + 1]; v[t] = n;", 1),
        ("n += v[t + 2]; v[t] = n; __syncwarp(); n += v[t + 1]; v[t] = n;", 0),
    ],
)
def test_what_needs_a_warp_in_step_says_so(statements: str, noted: int) -> None:
    got = _rewritten(
        f"__global__ void f(int* p, int n) {{ int t = threadIdx.x; volatile int* v = p;"
        f" {statements} }}"
    )
    assert got.count(_IN_STEP) == noted
    assert got.replace(_IN_STEP, "").count(statements) == 1
    host = f"void f(volatile int* v, int* p, int n, int t) {{ {statements} }}"
    assert _IN_STEP not in _rewritten(host)


@pytest.mark.parametrize(
    "loop",
    [
        "while (*flag == 0) { ++n; }",
        "while (*flag == 0) if (++n > 5) n = 0; else --n;",
        "while (!done) continue;",
        "while (look(p) == 0) ++n;",
        "while (local == 0) local = *flag;",
        "while (*(volatile int*)p == 0) { n += 2; }",
        "while (true) { if (*flag) break; }",
        "for (;;) { if (*flag) break; ++n; }",
        "for (;; ++n) { int v = *flag; if (v) { n = v; return; } }",
        "for (int i = 0; view[i] == 0; ++n) {}",
        "do { local = *flag; } while (local == 0);",
        "do ++n; while (*flag == 0);",
    ],
)
def test_a_loop_that_only_reads_gives_way(loop: str) -> None:
    assert _in_waiting_kernel(loop).count("spin_wait()") == 1


@pytest.mark.parametrize(
    "loop",
    [
        "for (int i = 0; i < n; ++i) n += flag[i];",  # not the loop's condition
        "for (int i = 0; *flag == 0; ++i) p[i] = i;",  # these write
        "while (*flag == 0) *p = 1;",
        "while (*flag == 0) p[0] += 1;",
        "while (*flag == 0) { ++p[0]; }",
        "while (*flag == 0) ++*p;",
        "while (*flag == 0) s->x = 1;",
        "while (n < 5) { ++n; if (n == 3) break; }",
        "do { ++n; } while (n < 5);",
        "for (int v : values) if (v == n) break;",
        "while (*flag == 0) (*p)++;",
        "while (*flag == 0) p[2]--;",
        "while (__ldcv(p) == 0) { ++n; }",  # a plain load, which nvcc may move out of the loop
    ],
)
def test_a_loop_that_does_something_does_not(loop: str) -> None:
    assert "spin_wait()" not in _in_waiting_kernel(loop)


def _in_waiting_kernel(loop: str) -> str:
    return _rewritten(
        "__device__ int look(const int* word) { return *static_cast<const volatile int*>(word); }\n"
        "__device__ volatile bool done;\n"
        "__global__ void f(volatile int* flag, int* p, S* s, int n) {\n"
        "  auto* view = (volatile int*)p; int local = 0;\n"
        f"  {loop}\n}}\n"
        "void host(volatile int* flag, int n) { while (*flag == 0) ++n; }"
    )


def test_a_header_s_function_that_reads_what_is_volatile(tmp_path: Path) -> None:
    (tmp_path / "look.cuh").write_text(
        "__device__ int look(const volatile int* word) noexcept { return *word; }"
    )
    source = tmp_path / "a.cu"
    source.write_text(
        '#include "look.cuh"\n__global__ void f(int* p, int n) { while (look(p) == 0) ++n; }'
    )
    output = rewrite_tree(source, tmp_path / "out", [tmp_path])
    assert "while ((look(p) == 0) && ::cudacpu::spin_wait()) ++n;" in output.read_text()


def test_branches_that_each_open_a_brace() -> None:
    text = (
        "#ifdef A\nvoid f() {\n#else\nvoid g() {\n#endif\n  k<<<1, 2>>>(x);\n}\n__shared__ int y;"
    )
    assert "CUDACPU_SHARED_PLACE(of_y" in _rewritten(text)  # not in a function again


def test_a_macro_before_a_kernel_is_not_its_name() -> None:
    text = rewrite("DEFINE(float)\n__global__ void k(int) { }", "x.cu")
    assert "(&k)), 0)" in text


REFUSED = [
    ('void f() {\n  asm volatile("ret;");\n}', 2, "inline PTX"),
    ('#define RET asm("ret;")', 1, "inline PTX"),
    ('#if SOMETHING_UNKNOWN\nasm("ret;");\n#endif', 2, "inline PTX"),
    ("#define START cuInit(0)\nvoid f() { START; }", 2, "macro START: cuInit(): the CUDA driver"),
    ("#define A cuInit(0)\n#define B A\nvoid f() { B; }", 3, "macro B: macro A: cuInit()"),
    ("\n#include <cub/cub.cuh>", 2, "CUB"),
    ('#include "cublas_v2.h"', 1, "cuBLAS"),
    ("__global__ void f() {\n  g<<<1, 2>>>(); }", 2, "device code"),
    ("__device__ void f() { if (a) { g<<<1, 2>>>(); } }", 1, "device code"),
    ("void f() { k<<<1>>>(x); }", 1, "a grid and a block"),
    ("void f() { k<<<1, 2; }", 1, "no matching"),
    ("__shared__ int x, y;", 1, "one variable"),
    ("struct S {\n__shared__ int x;\n};", 2, "a member of a class"),
    ("__device__ void f() { __shared__ int x = 3; }", 1, "initialiser"),
    ("__device__ void f() { __shared__ int x[2] = {1, 2}; }", 1, "initialiser"),
    ("texture<float, 2> t;", 1, "CUDA 12 has removed"),
    ("void f() {\n cudaBindTexture2D(0, t, p, d, w, h, s); }", 2, "CUDA 12 has removed"),
    ("__device__ float f() { return texCubemap<float>(t, 0, 0, 0); }", 1, "cubemaps"),
    ("__device__ float f() { return tex2DLod<float>(t, 0, 0, 0); }", 1, "tex2DLod"),
    ("void f() {\n cudaMallocMipmappedArray(&a, &d, e, 3); }", 2, "mipmaps"),
    ("void f() { cudaGraphAddNode(n, g, d, 0, 0, p); }", 1, "cudaGraphAddNode"),
    ("void f() {\n\n cuCtxSynchronize(); }", 3, "driver API"),
    ("__global__ void f(int n,\n const ptx::TensorMap map) {}", 2, "__grid_constant__"),
    ("#define PAIRS __cluster_dims__(2, 1, 1)", 1, "in a macro"),
    ("void f() {\n cuTensorMapEncodeTiled(&m); }", 2, "make_tensor_map"),
]


@pytest.mark.parametrize(("text", "line", "what"), REFUSED)
def test_what_is_refused_with_its_line(text: str, line: int, what: str) -> None:
    error = _refusal(text)
    assert (error.file, error.line) == ("day.cu", line)
    assert str(error).startswith(f"day.cu:{line}: ")
    assert what in str(error)


def test_a_macro_that_nothing_uses_may_call_what_is_missing() -> None:
    text = "#define START cuInit(0)\n#define TRY(x) ((x) == 0 ? 0 : cuGetErrorName(x))\n"
    assert _rewritten(text) == text


def test_functions_of_the_project_may_have_cuda_like_names() -> None:
    text = (
        "void cudaCheckAll(int);\n#define cudaTry(x) x\nvoid f() { cudaCheckAll(1); cudaTry(2); }"
    )
    assert _rewritten(text) == text


# ---------------------------------------------------------------- trees


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "common").mkdir(parents=True)
    (root / "day").mkdir()
    (root / "common" / "deep.cuh").write_text("#pragma once\n__noinline__ void deep();\n")
    (root / "common" / "tools.cuh").write_text('#pragma once\n#include "deep.cuh"\n')
    (root / "day" / "local.cuh").write_text('#include "../common/deep.cuh"\n#include <vector>\n')
    (root / "day" / "day.cu").write_text(
        '#include "common/tools.cuh"\n#include "local.cuh"\n#include "not_here.h"\n'
        '#ifdef __CUDACC__\n#include "missing.cuh"\n#endif\n'
    )
    return root


def test_headers_are_rewritten_too(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cpp = rewrite_tree(project / "day" / "day.cu", out, [project])
    assert cpp == out / "day.cpp"
    text = cpp.read_text()
    assert text.startswith(f'#line 1 "{project}/day/day.cu"\n')
    for name in ("common/tools.cuh", "day/local.cuh"):
        assert f'#include "{name}"' in text, "relative, so that the text is the same anywhere"
    assert '#include "not_here.h"' in text
    deep = (out / "common" / "deep.cuh").read_text()
    assert deep == (
        f'#line 1 "{project}/common/deep.cuh"\n#pragma once\n'
        "__attribute__((noinline)) void deep();\n"
    )
    assert '#include "../common/deep.cuh"' in (out / "day" / "local.cuh").read_text()


def test_the_text_does_not_depend_on_where_it_is_written(project: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("out", "another"):
        cpp = rewrite_tree(project / "day" / "day.cu", tmp_path / name, [project])
        files = sorted(path for path in cpp.parent.rglob("*") if path.is_file())
        texts.append([(path.name, path.read_text()) for path in files])
    assert texts[0] == texts[1] and len(texts[0]) == 4


def test_headers_in_angle_brackets_are_looked_for_in_the_roots(
    project: Path, tmp_path: Path
) -> None:
    day = project / "day" / "day.cu"
    day.write_text("#include <common/deep.cuh>\n#include <vector>\n#include <local.cuh>\n")
    text = rewrite_tree(day, tmp_path / "out", [project]).read_text()
    assert '#include "common/deep.cuh"' in text
    assert "#include <vector>\n#include <local.cuh>" in text, "which lies beside it, in no root"


def test_bytes_that_are_no_utf_8_stay(project: Path, tmp_path: Path) -> None:
    day = project / "day" / "day.cu"
    day.write_bytes(b'\xef\xbb\xbf// caf\xe9\nauto s = "\xff";\n')
    text = rewrite_tree(day, tmp_path / "out", [project]).read_bytes()
    assert text.endswith(b'"\n// caf\xe9\nauto s = "\xff";\n')


@pytest.mark.parametrize(
    ("condition", "macros", "refused"),
    [
        ("#ifdef USE_IT", Macros(), True),  # a header may define it
        ("#ifdef USE_IT", Macros(possible=frozenset({"OTHER"})), False),
        ("#if USE_IT > 2", Macros(possible=frozenset({"OTHER"})), False),
        ("#ifdef USE_IT", Macros(possible=frozenset({"USE_IT"})), True),
        ("#if USE_IT > 2", Macros({"USE_IT": 3}), True),
        ("#if USE_IT > 2", Macros({"USE_IT": 2}), False),
        ("#ifndef USE_IT", Macros({"USE_IT": None}), False),
    ],
)
def test_what_is_known_of_macros(
    project: Path, tmp_path: Path, condition: str, macros: Macros, refused: bool
) -> None:
    day = project / "day" / "day.cu"
    day.write_text(f"{condition}\n#include <cufft.h>\n#endif\n")
    if refused:
        with pytest.raises(RewriteError, match="cuFFT"):
            rewrite_tree(day, tmp_path / "out", [project], macros=macros)
    else:
        rewrite_tree(day, tmp_path / "out", [project], macros=macros)


def test_an_error_in_a_header_names_the_header(project: Path, tmp_path: Path) -> None:
    header = project / "common" / "deep.cuh"
    header.write_text('\n\nvoid f() { asm("ret;"); }\n')
    with pytest.raises(RewriteError) as caught:
        rewrite_tree(project / "day" / "day.cu", tmp_path / "out", [project])
    assert (caught.value.file, caught.value.line) == (str(header), 3)


def test_every_module_of_the_rewriter_counts_in_a_build() -> None:
    """A day that was built with other edits has to be built again."""
    imported = "import sys, common.cpu.rewrite; print(*sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", imported], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    files = {f"{name.rpartition('.')[2]}.py" for name in modules if name.startswith("common.cpu.")}
    assert {"rewrite.py", "lexer.py", "launches.py"} <= files
    assert files - {"__init__.py"} == {path.name for path in backend.REWRITER}


def test_code_that_ends_anywhere_is_rewritten_or_refused() -> None:
    """A learner saves a file in the middle of a line: then the compiler or the rewriter reports
    it."""
    numbers = random.Random(1)
    texts = [path.read_text() for path in sorted(KERNELS.glob("*.cu"))]
    refused = 0
    for _ in range(1000):
        text = numbers.choice(texts)
        start = numbers.randrange(len(text))
        try:
            rewrite(text[start : start + numbers.randrange(2000)], "half.cu")
        except RewriteError:
            refused += 1
    assert 0 < refused < 1000
