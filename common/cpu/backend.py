"""Hold the sources of the CPU backend, its compiler and linker flags, and its runtime library.

The runtime library is built once and loaded into the process that runs kernels. A day's file is
rewritten (rewrite.py), compiled with `cflags` and linked with `ldflags`. This needs the CUDA
headers, but no nvcc.
"""

import ctypes
import functools
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.base.toolchain import Variant
from common.cpu import models

_HERE: Final = Path(__file__).resolve().parent
INCLUDE_DIR: Final = _HERE / "include"
# The translation units of the runtime, which include its other sources, and how far each is
# optimised. At -O1, launches and barriers are as fast as at -O2 within a tenth, and compiling takes
# two thirds of the time; what no running kernel uses needs less.
_UNITS: Final[dict[Path, str]] = {
    _HERE / "runtime" / "kernels.cpp": "-O1",
    _HERE / "runtime" / "calls.cpp": "-Og",
}

# The sources of the precompiled headers.
HEADERS: Final = (
    *sorted(path for path in INCLUDE_DIR.rglob("*") if path.is_file()),
    _HERE.parent / "cuda" / "torch.cuh",
)

# The sources of the runtime library.
RUNTIME_SOURCES: Final[tuple[Path, ...]] = (
    *sorted((_HERE / "runtime").iterdir()),
    *HEADERS,
    _HERE.parent / "cuda" / "ptx" / "swizzle.cuh",  # layout of tiles
)

# The modules that decide how a file is rewritten: all but those that only use the result, so that a
# new module counts by default.
_NOT_REWRITING: Final = (
    *("__init__.py", "__main__.py", "findings.py", "libraries.py", "access_table.py"),
    *("launch_record.py", "program.py", "program_debugger.py", "program_profile.py"),
    *("source_warnings.py", "vendor.py"),
)
REWRITER: Final[tuple[Path, ...]] = tuple(
    path for path in sorted(_HERE.glob("*.py")) if path.name not in (*_NOT_REWRITING, "backend.py")
)

# Checks stay inline, so that the linker can rename the functions that they call (see ldflags).
# Locals begin with a pattern that no program expects, so that a use of an unset one shows, or with
# zeros, to compare; the compiler's value numbering would give it the value that simplifies the code
# most.
_WATCHING_ADDRESSES: Final = (
    "-fsanitize=address,alignment",
    "--param=asan-instrumentation-with-call-threshold=1000000",
    "-O1",
    "-fno-tree-fre",
)
_VARIANT_FLAGS: Final[dict[Variant, tuple[str, ...]]] = {
    "plain": (),
    "debug": ("-O0", "-g"),
    "address": (*_WATCHING_ADDRESSES, "-ftrivial-auto-var-init=pattern"),
    "zeroed": (*_WATCHING_ADDRESSES, "-ftrivial-auto-var-init=zero"),
    # Only the compiler's calls to the thread sanitizer are used: its library is not linked.
    # Structures stay whole, or a float4 would be read as four floats; equal statements are not
    # merged, or one would be reported with the line of another, and loops stay loops and become no
    # memset.
    "trace": (
        "-fsanitize=thread",
        "--param=tsan-distinguish-volatile=1",
        "-fno-tree-sra",
        "-fno-ipa-sra",
        "-fno-crossjumping",
        "-fno-tree-tail-merge",
        "-fno-tree-loop-distribute-patterns",
        "-fno-optimize-sibling-calls",
        "-Wno-tsan",  # "fences are not supported": here they are
    ),
}
_VARIANT_MACROS: Final[dict[Variant, tuple[str, ...]]] = {
    "plain": (),
    "debug": (),
    "address": ("-DCUDACPU_ADDRESS",),
    "zeroed": ("-DCUDACPU_ADDRESS",),
    "trace": ("-DCUDACPU_TRACE",),
}

_ORDERS: Final = {"forward": 0, "reverse": 1, "random": 2}
_TRACE_MODES: Final = {"off": 0, "races": 1, "profile": 2, "record": 3}
_COMPLETIONS: Final = {"late": 0, "early": 1, "mixed": 2}

# x86-64-v3 is AVX2 and FMA: every x86 server and desktop since 2015 (Intel) and 2017 (AMD). Naming
# the level rather than -march=native keeps builds usable on another machine that has it too.
_X86_64_V3: Final = {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}


def runtime_commands(
    compiler: str, cuda_include: Path, out: Path, variant: Variant = "plain"
) -> tuple[list[list[str]], list[str]]:
    """Return the commands that build the runtime library; `out` is the `.so` to write.

    First the compile commands, which may run in parallel, then the link command. Objects are
    written to the folder of `out`.
    """
    flags = [*_common_flags(cuda_include), *_VARIANT_MACROS[variant], "-Wall", "-pthread"]
    objects = {unit: str(out.with_name(f"{unit.stem}.o")) for unit in _UNITS}
    compiles = [
        [compiler, "-c", *flags, level, str(unit), "-o", objects[unit]]
        for unit, level in _UNITS.items()
    ]
    # -Bsymbolic: otherwise inline functions and templates of the standard library could be those of
    # a day that was loaded first, with a sanitizer's calls in them.
    link = [compiler, "-shared", "-pthread", "-Wl,-Bsymbolic", *objects.values(), "-o", str(out)]
    return compiles, [*link, "-ldl"]


def cflags(cuda_include: Path, compiler: str = "g++", variant: Variant = "plain") -> list[str]:
    """Return compiler flags for a rewritten day; they differ if `compiler` is a clang."""
    return [
        *_common_flags(cuda_include),
        *_VARIANT_MACROS[variant],
        *_VARIANT_FLAGS[variant],
        "-include",
        "cuda_runtime.h",  # by name: #include_next needs the folder in which it was found
        # nvcc contracts a*b+c to an FMA by default; ISO mode would switch that off here.
        "-ffp-contract=fast",
        # #pragma unroll and similar pragmas are for nvcc.
        "-Wno-unknown-pragmas",
        "-Wno-attributes",
        *([] if "clang" in Path(compiler).name else _GCC_FLAGS),
    ]


# -fno-gnu-unique: otherwise g++ makes static variables of templates one for the whole process, and
# two days with a kernel of the same name share the description of its shared memory. (clang never
# does this.) -fno-ipa-icf: otherwise g++ keeps one of two equal functions, as two launches of one
# kernel are, and the other loses its lines. -fcheck-new: `new` in a kernel returns null where the
# heap is full, and a program may look. -fno-tree-ter: otherwise the read in `h = x;` may have the
# line that uses h.
_GCC_FLAGS: Final = ("-fno-gnu-unique", "-fno-ipa-icf", "-fcheck-new", "-fno-tree-ter")

# Functions that the address sanitizer's checks call; runtime/addresses.cpp replaces them.
_ADDRESS_CALLS: Final = (
    "__asan_handle_no_return",
    "__asan_register_globals",
    "__ubsan_handle_type_mismatch_v1",
    *(f"__asan_report_{a}{n}" for a in ("load", "store") for n in (1, 2, 4, 8, 16, "_n")),
)


# Functions of the C library that access memory; runtime/tracer.cpp replaces them.
_TRACED_CALLS: Final = ("memcpy", "memmove", "memset")

# Functions that allocate and free, new and delete included; runtime/device_heap.cpp replaces them.
_HEAP_CALLS: Final = (
    *("malloc", "free", "_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"),
)


def ldflags(runtime: Path, variant: Variant = "plain") -> list[str]:
    """Return linker flags for a day that runs on this runtime library, built as the same
    variant."""
    runtime = runtime.resolve()
    renamed = _ADDRESS_CALLS if variant in ("address", "zeroed") else ()
    renamed = _HEAP_CALLS + (_TRACED_CALLS if variant == "trace" else renamed)
    # -Bsymbolic: a day calls its own kernels, even if another library defines the same names.
    # --no-as-needed: the library that the linker sees may be an empty one of that name.
    return [
        "-Wl,-Bsymbolic",
        *(f"-Wl,--wrap={name}" for name in renamed),
        f"-L{runtime.parent}",
        f"-Wl,--push-state,--no-as-needed,-l:{runtime.name},--pop-state",
        f"-Wl,-rpath,{runtime.parent}",
    ]


# libasan's settings: leaks are not reported; signals and their stacks belong to the runtime; an
# access far beyond a tensor must still be in its red zone.
_ADDRESS_OPTIONS: Final = ":".join(
    (
        "detect_leaks=0",
        *(f"handle_{signal}=0" for signal in ("segv", "sigbus", "sigfpe", "sigill")),
        "use_sigaltstack=0",
        "detect_stack_use_after_return=0",
        "alloc_dealloc_mismatch=0",
        "symbolize=0",
        "redzone=512",
    )
)


def preloaded(compiler: str) -> dict[str, str]:
    """Return environment variables of a process that loads days of the variants "address" and
    "zeroed".

    Raise FileNotFoundError, with the package to install, if the compiler has no such library, or is
    clang, which has other flags and another library.
    """
    if "clang" in Path(compiler).name:
        raise FileNotFoundError(f"{compiler}: a build that watches addresses needs g++ (set CXX)")
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):  # without the second, exceptions bypass it
        command = [compiler, f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if not Path(path).is_absolute():  # the compiler returns an unknown name unchanged
            raise FileNotFoundError(
                f"{compiler} has no {name}: install g++ with its address sanitizer (libasan)"
            )
        found.append(path)
    return {"LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": _ADDRESS_OPTIONS}


def _common_flags(cuda_include: Path) -> list[str]:
    return [
        "-std=c++20",
        "-O2",
        "-g1",  # line tables, so that a fault can name its line
        "-fPIC",
        "-fstack-clash-protection",  # a large local array must not jump over the guard of its stack
        "-fno-strict-aliasing",  # kernels reinterpret pointers, which nvcc allows
        "-fno-semantic-interposition",  # or no function of a shared library could be inlined
        "-ftls-model=initial-exec",
        *_architecture_flags(),
        f"-I{INCLUDE_DIR}",
        "-isystem",
        str(cuda_include),
        "-isystem",
        str(cuda_include / "cccl"),  # libcu++, from CUDA 13 on; nvcc looks there by itself
    ]


@functools.cache
def _architecture_flags() -> tuple[str, ...]:
    if platform.machine() != "x86_64":
        return ()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "")
    return ("-march=x86-64-v3",) if _X86_64_V3.issubset(flags.split()) else ()


@dataclass(frozen=True)
class Launch:
    """The size of a kernel's launch. grid: blocks along x, y, z. block: threads along x, y, z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]


class Runtime:
    """The runtime library in this process; its settings apply to the launches that follow."""

    def __init__(self, library: Path) -> None:
        """Load the library. Raise OSError if it cannot be loaded."""
        # RTLD_GLOBAL: a day's library that was linked by name finds this one already there.
        self._library = ctypes.CDLL(str(library.resolve()), mode=ctypes.RTLD_GLOBAL)
        numbers = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_uint32]
        self._library.cudacpu_set_schedule.argtypes = numbers
        self._library.cudacpu_set_model.argtypes = [ctypes.c_char_p]
        self._library.cudacpu_set_threads.argtypes = [ctypes.c_uint]
        sizes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
        self._library.cudacpu_name_memory.argtypes = [*sizes, ctypes.c_char_p]
        for limit in ("time", "spin", "stuck"):
            getattr(self._library, f"cudacpu_set_{limit}_limit").argtypes = [ctypes.c_double]
        self.traces = hasattr(self._library, "cudacpu_set_trace")  # built as the variant "trace"
        if self.traces:
            self._library.cudacpu_set_trace.argtypes = [ctypes.c_int]
            self._library.cudacpu_take_trace.restype = ctypes.c_char_p
            self._library.cudacpu_follow.argtypes = sizes[:2]
            self._library.cudacpu_follow_no_longer.argtypes = sizes[:1]
            self._library.cudacpu_written.argtypes = sizes[:2]
        self._library.cudacpu_work_done.restype = ctypes.c_uint64
        self._library.cudacpu_launch_count.restype = ctypes.c_uint64
        self._library.cudacpu_launches.restype = ctypes.c_char_p
        self._library.cudacpu_early_return.restype = ctypes.c_char_p
        self._library.cudacpu_undefined_shuffle.restype = ctypes.c_char_p
        self._library.cudacpu_copy_late.argtypes = [*sizes[:1], *sizes[:1], ctypes.c_size_t]
        self._library.cudacpu_end_late_check.restype = ctypes.c_char_p
        self._library.cudacpu_wait_for_current_stream.restype = ctypes.c_char_p
        self._library.cudacpu_handles.restype = ctypes.c_size_t
        self._library.cudacpu_allocations.restype = ctypes.c_size_t
        self._library.cudacpu_forget_tensors.restype = ctypes.c_char_p
        self._library.cudacpu_add_tensor.argtypes = [*sizes, ctypes.c_int, ctypes.c_char_p]
        self._library.cudacpu_on_other_device.argtypes = sizes[:2]
        self._model = ""

    def set_model(self, model: str) -> None:
        """Choose the simulated card from now on: "8.6", or "" for the default. Raise ModelError."""
        self._model = model
        self._library.cudacpu_set_model(models.play(model).encode())

    def set_small(self, small: bool, shared: bool = False) -> None:
        """Make that card small: two multiprocessors with one block each, three blocks along y, 2 KB
        of shared memory to opt in to (48 KB without opting in). shared: keep all of its shared
        memory."""
        if small:
            self._library.cudacpu_set_small(int(shared))
        else:
            self.set_model(self._model)

    def check_launcher(self, on: bool) -> None:
        """Give launchers, from now on, a current stream that is not the default one and a current
        device that is not the tensors'. A launch on the wrong one then throws, and so does a
        request for its number."""
        self._library.cudacpu_check_launcher(int(on))

    def place_on_other_device(self, address: int, size: int) -> None:
        """Count exactly these bytes of memory as a second device's from now on."""
        self._library.cudacpu_on_other_device(address, size)

    def begin_late_check(self, pinned: bool) -> None:
        """Run the work of streams as late as legal from now on. pinned: count host arrays as
        pinned."""
        self._library.cudacpu_begin_late_check(int(pinned))

    def wait_for_current_stream(self) -> str:
        """Run the work that the current stream waits for. Return what failed, or ""."""
        return self._library.cudacpu_wait_for_current_stream().decode()

    def copy_late(self, to: int, source: int, size: int) -> None:
        """Submit a late copy of `size` bytes between two addresses to the current stream."""
        self._library.cudacpu_copy_late(to, source, size)

    def end_late_check(self) -> str:
        """Run the work that the current stream waits for, then the rest. Return the failure, or the
        work that the current stream does not wait for; "" for neither."""
        return self._library.cudacpu_end_late_check().decode()

    def work_done(self) -> int:
        """Return the number of kernels, copies and fills that have run so far."""
        return int(self._library.cudacpu_work_done())

    def launches(self) -> list[Launch]:
        """Return the launches since `check_launcher(True)`; [] if there were too many."""
        lines = self._library.cudacpu_launches().decode().splitlines()
        if self._library.cudacpu_launch_count() != len(lines):
            return []
        found = []
        for line in lines:
            x, y, z, a, b, c = map(int, line.split())
            found.append(Launch((x, y, z), (a, b, c)))
        return found

    def early_return(self) -> str:
        """Return a description of the first barrier since `check_launcher(True)` that some threads
        of a block missed because they had returned; "" if there was none."""
        return self._library.cudacpu_early_return().decode()

    def undefined_shuffle(self) -> str:
        """Return a description of the first shuffle since then that read a lane which did not take
        part; "" if there was none."""
        return self._library.cudacpu_undefined_shuffle().decode()

    def allocations(self) -> int:
        """Return the number of allocations by cudaMalloc and similar calls that were not freed."""
        return int(self._library.cudacpu_allocations())

    def handles(self) -> int:
        """Return the number of streams, events, graphs and memory pools that were not
        destroyed."""
        return int(self._library.cudacpu_handles())

    def device_left(self) -> int:
        """Return the device that a launcher left current instead of the one before, or -1."""
        return int(self._library.cudacpu_device_left())

    def add_tensor(self, address: int, size: int, band: int, writable: bool, name: str) -> None:
        """Register a tensor of `size` bytes, in separate memory with `band` bytes on both sides,
        for `close_tensors`. writable: kernels may write it."""
        self._library.cudacpu_add_tensor(address, size, band, int(writable), name.encode())

    def close_tensors(self) -> None:
        """Prevent host code from accessing the tensors from now on, and kernels from writing
        read-only ones."""
        self._library.cudacpu_close_tensors()

    def open_tensors(self, opened: bool) -> None:
        """Open the tensors for PyTorch's own work; then close them again."""
        self._library.cudacpu_open_tensors(int(opened))

    def forget_tensors(self) -> str:
        """Remove all tensors. Return the first one that host code accessed, and where, or ""."""
        return self._library.cudacpu_forget_tensors().decode()

    def follow(self, address: int, size: int) -> None:
        """Count these bytes as unwritten from now on, in the variant "trace"."""
        self._library.cudacpu_follow(address, size)

    def follow_no_longer(self, address: int) -> None:
        """End `follow` for the memory that begins at this address."""
        self._library.cudacpu_follow_no_longer(address)

    def written(self, address: int, size: int) -> None:
        """Count these bytes as written by PyTorch, in the variant "trace"."""
        self._library.cudacpu_written(address, size)

    def name_memory(self, address: int, size: int, element: int, name: str) -> None:
        """Set the name in messages of `size` bytes at `address`; element: bytes per element."""
        self._library.cudacpu_name_memory(address, size, element, name.encode())

    def forget_names(self) -> None:
        """Remove the names that name_memory set, before their memory is freed."""
        self._library.cudacpu_forget_names()

    def set_schedule(
        self, order: str, seed: int = 0, blocks: str = "", completion: str = ""
    ) -> None:
        """Choose the order of threads and blocks, and the time of asynchronous copies.

        order: of threads, "forward", "reverse" or "random". seed: of random choices, 0 to 2^32-1.
        blocks: their order, by default that of threads. completion: "late" (at the wait that
        requires it), "early" (immediately) or "mixed" (each at random); by default late, and mixed
        in random order.
        """
        blocks = blocks or order
        completion = completion or ("mixed" if order == "random" else "late")
        for name, value in (("order", order), ("blocks", blocks)):
            if value not in _ORDERS:
                raise ValueError(f"{name} must be one of {', '.join(_ORDERS)}, not {value!r}")
        if completion not in _COMPLETIONS:
            raise ValueError(
                f"completion must be one of {', '.join(_COMPLETIONS)}, not {completion!r}"
            )
        self._library.cudacpu_set_schedule(
            _ORDERS[order], _ORDERS[blocks], _COMPLETIONS[completion], seed
        )

    def set_threads(self, n: int) -> None:
        """Set the number of OS threads that run blocks (default: one per core)."""
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        self._library.cudacpu_set_threads(n)

    def set_time_limit(self, seconds: float) -> None:
        """Make a launch that takes longer throw (default: 30 s)."""
        self._limit("time", seconds)

    def set_spin_limit(self, seconds: float) -> None:
        """Make a launch throw when its threads have only polled for this long (default: 1.5 s)."""
        self._limit("spin", seconds)

    def set_stuck_limit(self, seconds: float) -> None:
        """Make a launch throw when one thread has run for this long without reaching a barrier or
        its end (default: infinity; only the time limit counts)."""
        self._limit("stuck", seconds)

    def refuse_masks(self, on: bool) -> None:
        """Make a launch throw, if `on`, when a shuffle's mask names lanes that have returned."""
        self._library.cudacpu_set_masks(2 if on else 0)

    def set_trace(self, mode: str) -> None:
        """Choose how the following launches are traced: "off", "races", "profile" (which counts
        accesses) or "record" (which keeps each). Raise ValueError without the variant "trace"."""
        if mode not in _TRACE_MODES:
            raise ValueError(f"mode must be one of {', '.join(_TRACE_MODES)}, not {mode!r}")
        if not self.traces:
            raise ValueError('this runtime is not built as the variant "trace"')
        self._library.cudacpu_set_trace(_TRACE_MODES[mode])

    def take_trace(self) -> str:
        """Return the findings since the last call as JSON, for common/cpu/findings.py, and the
        records, for common/cpu/launch_record.py."""
        return self._library.cudacpu_take_trace().decode()

    def _limit(self, which: str, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, not {seconds}")
        getattr(self._library, f"cudacpu_set_{which}_limit")(seconds)
