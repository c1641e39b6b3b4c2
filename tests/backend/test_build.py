"""The build: the coverage of its key, a killed build, the wheels' compiler, the compiler's
message."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.base import compiling, toolchain
from common.base.days import Day, read_day
from common.base.paths import ROOT
from common.build import custom_build, day_build, library, nvcc
from common.cpu import backend as cpu
from common.cpu import libraries
from tests.progress import finish, run, wait_for

SOURCE = """
#include "common/cuda/tensor.cuh"
#include "scale.cuh"

__global__ void scale_kernel(const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * SCALE;
}

Tensor scale(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).contiguous();
  Tensor y = torch::stable::empty_like(x);
  scale_kernel<<<grid_size(ceil_div<int64_t>(x.numel(), 256), "x"), 256, 0, current_stream(x)>>>(
      data<float>(x), mutable_data<float>(y), x.numel());
  check_launch("scale");
  return y;
}

STABLE_TORCH_LIBRARY(day77, m) { m.def("scale(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(day77, CUDA, m) { m.impl("scale", TORCH_BOX(&scale)); }
"""
METADATA = 'TITLE = "t"\nTEACHES = "t"\nTOPICS = ("t",)\nSOURCE = "scale.cu"\n'


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    """Return a day outside the repository with its own header, and a cache without any day, in
    folders with a blank in their names."""
    platform = toolchain.detect("cpu")
    shared = [libraries.build_runtime(platform), *map(Path, libraries.build_prelude(platform)[1:])]
    cache = tmp_path / "a cache"
    cache.mkdir()
    for file in shared:
        (cache / file.parent.name).symlink_to(file.parent)
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(cache))
    folder = tmp_path / "some days" / "day77"
    folder.mkdir(parents=True)
    (folder / "scale.cu").write_text(SOURCE)
    (folder / "scale.cuh").write_text("#pragma once\nconstexpr float SCALE = 3.0f;\n")
    (folder / "day.py").write_text(METADATA)
    return read_day(folder)


def build_in_child(day: Day, **kwargs: object) -> subprocess.Popen[str]:
    """Build the day on the CPU backend and print scale(1)."""
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from common.base import compiling, toolchain; from common.base.days import read_day\n"
        "from common.build import day_build, library\n"
        "day = read_day(Path(sys.argv[1]))\n"
        "platform = toolchain.detect('cpu')\n"
        "try: day_build.build(day, platform)\n"
        "except compiling.BuildError as error: sys.exit('BUILD ERROR ' + error.text)\n"
        "y = library.load(library.plan(day, platform)).scale(torch.ones(1))\n"
        "print(y.item())\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(day.folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **kwargs,  # type: ignore[call-overload]
    )


def test_builds_once_and_again_when_a_header_changes(day: Day) -> None:
    platform = toolchain.detect("cpu")
    first = library.plan(day, platform)
    assert not day_build.ready(day, platform)
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err
    assert day_build.ready(day, platform)

    built = first.library.stat()
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err
    assert os.path.samestat(first.library.stat(), built)  # nothing was built again
    assert first.library.stat().st_mtime_ns == built.st_mtime_ns

    (day.folder / "scale.cuh").write_text("#pragma once\nconstexpr float SCALE = 5.0f;\n")
    changed = library.plan(day, platform)
    assert changed.entry.key != first.entry.key and not changed.entry.ready
    out, err = finish(build_in_child(day))
    assert out == "5.0\n", err


def test_a_killed_build_does_not_block_the_next(day: Day) -> None:
    platform = toolchain.detect("cpu")
    directory = library.plan(day, platform).entry.directory
    killed = build_in_child(day)
    wait_for(lambda: list(directory.glob("build.ninja")), killed)  # the compiler is about to start
    time.sleep(0.3)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert (directory / "lock").exists(), "PyTorch's own lock was meant to be left behind"
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err


def test_a_compile_error_is_shown_once_and_points_into_the_source(day: Day) -> None:
    broken = SOURCE.replace("y[i] = x[i] * SCALE;", "y[i] = x[i] * UNKNOWN_NAME;")
    day.source.write_text(broken)
    line = broken.splitlines().index("  if (i < n) y[i] = x[i] * UNKNOWN_NAME;") + 1
    _, err = finish(build_in_child(day))
    text = err[err.index("BUILD ERROR") :]
    assert f"scale.cu:{line}:" in text and "UNKNOWN_NAME" in text
    assert text.count("error:") == 1
    assert "ninja" not in text and "Traceback" not in text


def test_an_unsupported_feature_is_a_build_error_with_its_line(day: Day) -> None:
    day.source.write_text(SOURCE.replace("  if (i < n)", '  asm("trap;");\n  if (i < n)'))
    _, err = finish(build_in_child(day))
    assert "BUILD ERROR" in err and "scale.cu:7" in err and "inline PTX" in err


def test_the_operators_of_used_days_are_loaded_too(day: Day) -> None:
    """They are built with the day that uses them, and it is not ready without them."""
    user = day.folder.parent / "day78"
    shutil.copytree(day.folder, user)
    (user / "scale.cu").write_text(SOURCE.replace("day77", "day78"))
    (user / "day.py").write_text(METADATA + "USES = (77,)\n")
    assert read_day(user).uses == (77,)
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from common.base import toolchain; from common.base.days import read_day\n"
        "from common.build import day_build, library\n"
        "folder = Path(sys.argv[1]); platform = toolchain.detect('cpu')\n"
        "library.DAYS = folder.parent; day = read_day(folder)\n"
        "library.build_library(library.plan(day, platform))\n"
        "print(day_build.ready(day, platform)); day_build.build(day, platform)\n"
        "print(day_build.ready(day, platform)); library.load(library.plan(day, platform))\n"
        "print(torch.ops.day77.scale(torch.ones(1)).item())\n"
    )
    done = run([sys.executable, "-c", code, str(user)], cwd=ROOT)
    assert done.stdout.split() == ["False", "True", "3.0"], done.stderr


def test_a_second_cu_is_part_of_the_library(day: Day) -> None:
    """Its operators are in the day's namespace, and a change in it builds the library again."""
    second = day.folder / "more.cu"
    second.write_text(
        SOURCE.replace("scale(", "scale_more(")
        .replace("scale_kernel", "scale_more_kernel")
        .replace("&scale)", "&scale_more)")
        .replace('m.impl("scale"', 'm.impl("scale_more"')
        .replace("STABLE_TORCH_LIBRARY(", "STABLE_TORCH_LIBRARY_FRAGMENT(")
    )
    (day.folder / "day.py").write_text(METADATA + 'EXTRA_SOURCES = ("more.cu",)\n')
    both = read_day(day.folder)
    assert both.library_sources == (day.source, second) and both.other_sources == ()
    platform = toolchain.detect("cpu")
    todo = library.plan(both, platform)
    assert todo.entry.key != library.plan(day, platform).entry.key
    assert day_build.extras(todo) is None
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from common.base import compiling, toolchain; from common.base.days import read_day\n"
        "from common.build import day_build, library\n"
        "day = read_day(Path(sys.argv[1])); platform = toolchain.detect('cpu')\n"
        "day_build.build(day, platform); ops = library.load(library.plan(day, platform))\n"
        "print(ops.scale(torch.ones(1)).item(), ops.scale_more(torch.ones(1)).item())\n"
    )
    done = run([sys.executable, "-c", code, str(day.folder)], cwd=ROOT)
    assert done.stdout.split() == ["3.0", "3.0"], done.stderr
    second.write_text(second.read_text() + "int changed;\n")
    assert library.plan(both, platform).entry.key != todo.entry.key


def test_a_library_of_a_day_s_own_making(day: Day) -> None:
    """Built in a copy of the sources, once; the output of a failing command is in the error."""
    (day.folder / "empty.cpp").write_text("int nothing;\n")
    todo = library.plan(day, toolchain.detect("cpu"))
    before = sorted(day.folder.iterdir())
    made: list[Path] = []

    def make(site: custom_build.Site) -> Path:
        assert site.kernel.suffix == ".cpp" and "scale_kernel" in site.kernel.read_text()
        site.run(["sh", "-c", "$CXX -shared -fPIC $SOURCE -o made.so"], SOURCE="empty.cpp")
        made.append(site.directory / "made.so")
        return made[-1]

    for _ in range(2):
        builder = custom_build.Builder(todo)
        builder.library("day77_own", ["scale.cu", "scale.cuh", "empty.cpp"], make)
        assert builder.seconds is not None
    assert len(made) == 1 and not made[0].exists(), "moved to its place in the cache"
    assert sorted(day.folder.iterdir()) == before

    def fail(site: custom_build.Site) -> Path:
        site.run(["sh", "-c", "echo no such thing; exit 3"])
        raise AssertionError("a failing command went unnoticed")

    with pytest.raises(compiling.BuildError, match=r"echo no such thing(.|\n)*no such thing"):
        custom_build.Builder(todo).library("day77_fails", ["scale.cu", "scale.cuh"], fail)


def test_a_library_of_generated_text(day: Day) -> None:
    """Built once per text, for functions that ctypes calls; its errors are the compiler's."""
    builder = custom_build.Builder(library.plan(day, toolchain.detect("cpu")))
    assert builder.text() == SOURCE
    text = """
__global__ void set_kernel(int* to) { to[threadIdx.x] = FACTOR * threadIdx.x; }
extern "C" void set(int* to) { set_kernel<<<1, 4>>>(to); cudaDeviceSynchronize(); }
"""
    places = []
    for factor in (3, 5, 3):
        made = builder.generated("set", text.replace("FACTOR", str(factor)))
        numbers = (ctypes.c_int * 4)()
        made.set(numbers)
        assert list(numbers) == [0, factor, 2 * factor, 3 * factor]
        places.append(made._name)
    assert places[0] == places[2] != places[1]
    with pytest.raises(compiling.BuildError, match="FACTOR"):
        builder.generated("set", text)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_day_builds_itself_has_the_learner_s_file(
    day: Day, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner's file has the name of the file that it replaces."""
    learners = day.folder.parent / "write.cu"
    learners.write_text(SOURCE + "int learners;\n")
    todo = library.plan(day.with_source(day.source, learners), toolchain.detect("cpu"))
    if device == "cuda":  # its compiler takes the file unchanged
        monkeypatch.setattr(custom_build.Builder, "_on_this_device", lambda _, file: file)

    def make(site: custom_build.Site) -> Path:
        assert "int learners;" in (site.directory / "scale.cu").read_text()
        assert "int learners;" in site.kernel.read_text()
        assert not (site.directory / "write.cu").exists()
        site.run(["sh", "-c", "echo | $CXX -shared -fPIC -x c++ - -o made.so"])
        return site.directory / "made.so"

    custom_build.Builder(todo).library("day77_own", ["scale.cu", "scale.cuh"], make)


def wheel_toolkit() -> toolchain.Toolkit:
    home = toolchain._wheel_home()
    assert home is not None, "the cuda-toolkit wheels of requirements.txt are not installed"
    toolkit = toolchain._toolkit(home, "the cuda-toolkit wheels")
    assert toolkit is not None
    return toolkit


def test_products_that_wait_for_each_other_are_an_error(tmp_path: Path) -> None:
    source = tmp_path / "waiting.cu"
    source.write_text(
        """#include "common/cuda/ptx.cuh"
__global__ void waiting(float* out, int steps) {
  extern __shared__ __align__(1024) char tile[];
  float sums[4] = {};
  for (int i = 0; i < steps; ++i) {
    ptx::wgmma_fence(sums);
    const uint64_t at = ptx::wgmma_descriptor(tile, ptx::Swizzle::k128, 0, 1024);
    ptx::wgmma<__nv_bfloat16, __nv_bfloat16>(sums, at, at);
    ptx::wgmma_commit();
    sums[0] += 1;
  }
  ptx::wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}
"""
    )
    toolkit = wheel_toolkit()
    with pytest.raises(compiling.BuildError, match="instructions are serialized"):
        nvcc.compile_source("test-waiting", source, ["9.0a"], toolkit)
    nvcc.compile_source("test-waiting", source, ["9.0a"], toolkit, optimised=False)


def test_finds_the_wheels_where_the_machine_has_no_toolkit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = toolchain.find_toolkit.__wrapped__()
    assert found == wheel_toolkit()


def test_compiles_and_links_with_the_wheels(day: Day, tmp_path: Path) -> None:
    toolkit = wheel_toolkit()
    nvcc.compile_only(day, ["8.0", "9.0a"], toolkit)
    program = tmp_path / "program.cu"
    program.write_text(
        "__global__ void k() {}\n"
        "int main() { int n; k<<<1, 1>>>(); return cudaRuntimeGetVersion(&n) != cudaSuccess; }\n"
    )
    command = [str(toolkit.nvcc), str(program), "-o", str(tmp_path / "program"), "-cudart=shared"]
    library = toolkit.home / "lib"  # libcudadevrt.a, which nvcc needs, has its plain name there
    command += ["-gencode=arch=compute_90a,code=sm_90a"]
    command += [f"-L{nvcc.link_directory(toolkit)}", f"-L{library}"]
    subprocess.run(command, check=True, env={**os.environ, "CUDA_HOME": "", "LIBRARY_PATH": ""})
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    assert subprocess.run([tmp_path / "program"], env=environment).returncode == 0


def test_a_wrong_cuda_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(toolchain.ToolchainError, match=r"CUDA_HOME=.* holds no working bin/nvcc"):
        toolchain.find_toolkit.__wrapped__()


def test_no_compiler_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(toolchain.ToolchainError, match="apt-get install"):
        toolchain.find_compiler.__wrapped__()


def test_unknown_architectures_are_named() -> None:
    with pytest.raises(toolchain.ToolchainError, match="'hopper' is no architecture"):
        toolchain.sm("hopper")


def test_the_compiled_headers_are_used(tmp_path: Path) -> None:
    platform = toolchain.detect("cpu")
    prelude = libraries.build_prelude(platform)
    if not prelude:
        pytest.skip(f"{platform.compiler_version} takes no headers compiled by g++")
    source = tmp_path / "empty.cpp"
    source.write_text('#include "common/cuda/tensor.cuh"\n')
    command = [platform.compiler, *prelude, "-fPIC", compiling.STABLE_ABI, f"-I{ROOT}", "-H"]
    command += cpu.cflags(platform.cuda_include, platform.compiler)
    command += [f"-I{path}" for path in compiling.torch_includes()]
    done = subprocess.run(
        [*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"! {prelude[-1]}.gch" in done.stderr, "g++ says with ! which it takes"


def test_a_comment_in_the_rewriter_makes_nothing_stale(
    day: Day, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A day is keyed by its rewritten text, the runtime by its own C++."""
    platform = toolchain.detect("cpu")
    before, runtime = library.plan(day, platform).entry, libraries.runtime(platform)
    changed = tmp_path / "launches.py"
    changed.write_text("# a comment\n")
    monkeypatch.setattr(cpu, "REWRITER", (*cpu.REWRITER, changed))
    assert library.plan(day, platform).entry == before
    assert libraries.runtime(platform) == runtime


def test_a_library_that_does_not_load_is_built_again(day: Day) -> None:
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err
    todo = library.plan(day, toolchain.detect("cpu"))
    todo.library.write_bytes(b"x" * todo.library.stat().st_size)  # as long, so only loading fails
    with pytest.raises(compiling.BuildError, match=r"(?s)run the day again.*invalid ELF header"):
        library.load(todo)
    assert not todo.entry.ready
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err


def test_a_library_loads_after_its_runtime_was_pruned(day: Day) -> None:
    """Newer runtimes drive an old one out of the cache, and a checkout of old sources needs it."""
    runtime = libraries.runtime(toolchain.detect("cpu")).directory
    kept = runtime.resolve()
    runtime.unlink()  # in this cache it is a link
    shutil.copytree(kept, runtime)
    out, err = finish(build_in_child(day))
    assert out == "3.0\n", err
    shutil.rmtree(runtime)
    code = (
        "import shutil, sys; from pathlib import Path\n"
        "from common.base import toolchain; from common.base.days import read_day\n"
        "from common.build import library; from common.cpu import libraries\n"
        "libraries.build_runtime = lambda _: shutil.copytree(sys.argv[3], sys.argv[2])\n"
        "library.load(library.plan(read_day(Path(sys.argv[1])), toolchain.detect('cpu')))\n"
    )
    command = [sys.executable, "-c", code, str(day.folder), str(runtime), str(kept)]
    run(command, cwd=ROOT, check=True)


def test_pytorchs_own_tools_use_the_courses_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CXX", "CC"):
        monkeypatch.setenv(variable, "to be replaced")
    platform = toolchain.Platform("cpu", "found", "", Path(), "")
    monkeypatch.setattr(library, "detect", lambda device: platform)
    from torch._inductor import config  # which has read CXX

    monkeypatch.setattr(config.cpp, "cxx", (None, "read before"))
    library.use_compilers("cpu")
    assert os.environ["CXX"] == os.environ["CC"] == config.cpp.cxx[1] == "found"


def test_the_calls_of_cub_compile() -> None:
    """They are built only for --rivals, on a GPU."""
    source = ROOT / "common" / "references" / "cub_calls.cu"
    nvcc.compile_source("cub_calls", source, ["9.0a"], optimised=False)
