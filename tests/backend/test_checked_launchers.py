"""The checks of a rung reject launchers that are wrong in one way each, on the CPU backend, and
accept the one that is right (cpu_kernels/launchers.cu)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from common.base.declaration import Problem, Rung, grid
from common.check.bad_input import check_bad_input
from common.check.device import Backend
from common.check.rungs import CheckResult, check_rung
from common.cpu import backend
from tests.kernel_files import Libraries, names_line

KERNELS = "launchers"
ADD_ONE = Problem(
    name="add one",
    inputs=lambda case, draw: (draw(*case.shape),),
    reference=lambda x: x + 1,
    rungs=(Rung("rung", "the test's own"),),
    cases=grid([(1,), (3, 31), (8, 64), (0, 4), (1000,)], ["float32"]),
)
ADD = Problem(
    name="add",
    inputs=lambda case, draw: (draw(*case.shape), draw(*case.shape)),
    reference=lambda x, y: x + y,
    rungs=(Rung("rung", "the test's own"),),
    cases=grid([(3, 31), (8, 64)], ["float32"]),
)
RIGHT = (
    *("right", "keeps_a_workspace", "shared_right", "dynamic_right", "aligned", "persistent"),
    *("persistent_tiles", "strides_along_y", "long_row_right", "pair_right"),
    *("forks_and_joins", "workspace_per_stream", "through_a_clone", "restores_state", "in_place"),
)
# Patterns that the failure's text must match.
WRONG = {
    "without_guard": r"on the wrong device: a kernel .* device guard.*\n.*launchers\.cu:\d+",
    "queries_without_guard": r"on the wrong device: the number of .* a device guard",
    "on_default_stream": r"on the wrong stream: a kernel .* current_stream\(x\)",
    "keeps_the_stream": r"current one in an earlier call: .*\n.*launchers\.cu:\d+",
    "fills_on_default_stream": "on the wrong stream: a copy, a fill or the like",
    "never_forks": r"with late streams \(forward order\), the output: .*\n.*a stream lack an event",
    "never_joins": r"late streams .*current stream does not wait for kernel add_one, launched at",
    "on_the_host": "host code touched memory of the device",
    "host_looks": "host code touched memory of the device",
    "kept_by_address": "in a second call, .*\n.*kept by the address of its input",
    "by_pytorch": r"the operator calls aten\.subtract\.Tensor",
    "writes_input": "a write to argument x, which the operator's schema does not mark",
    "keeps_tensors": r"a leak: tensors of earlier calls are still held\n.*shape \(64,\)",
    "keeps_results": "a leak: tensors of earlier calls are still held",
    "never_frees": r"a leak: each call leaves memory allocated",
    "keeps_host_memory": r"a leak: each call leaves host memory allocated\n.*1\d{6} more bytes",
    "keeps_events": "a leak: each call leaves streams, events.*\n.*1 more of them",
    "keeps_graphs": "a leak: each call leaves streams, events, graphs or memory pools",
    "keeps_pools": "a leak: each call leaves streams, events, graphs or memory pools",
    "keeps_threads": "a leak: each call leaves threads running",
    "keeps_if_refused": "bad input, x .*a leak: each such call leaves memory allocated",
    "keeps_files": "a leak: each call leaves files open\n.*1 more file descriptors",
    "rounds_upward": "state of the process\n.*rounding mode: to nearest before .*, upward after it",
    "rounds_vectors_upward": r"rounding mode: to nearest before the call, upward after it",
    "flushes_denormals": "state of the process\n.*denormals: kept before .*, flushed to zero after",
    "changes_directory": "state of the process\n.*working directory: /.+ before .*, / after it",
    "sets_device": "state of the process\n.*current device: 0 was set, and not the one before",
    "writes_behind_its_own": "written right beyond the end of an allocation of 40 bytes\n"
    r".*in kernel add_one, launched at .*launchers\.cu:\d+",
    "past_the_end": r"the output \(.*1 element past its end",
    "before_the_start": r"the output \(.*1 element before its start",
    "past_a_workspace": r"tensor 1 that the operator allocates \(.*1 element past its end",
    "shared_beyond": r"out of bounds: block \(0,0,0\) wrote 4 bytes: 4 bytes beyond the end of "
    r"__shared__ float tile\[BLOCK\]",
    "shared_before": "out of bounds: .* 4 bytes before the start of __shared__ float tile",
    "dynamic_beyond": "out of bounds: .* beyond the end of __shared__ memory, the dynamic part",
    "misaligned": r"bad input.*, x not aligned.*broke on the way\n.*a misaligned access",
    "one_trip": "on a small card .*elements are wrong",
    "one_tile": r"on a small card \(2 multiprocessors with one block each, 3 .*elements are wrong",
    "stops_along_y": "on a small card .*elements are wrong",
    "long_row_wrong": "on a small card .*element.* wrong",
    "pair_on_two_gpus": r"bad input, x on another GPU: it was accepted\n.*same_device",
    "pair_with_host": "bad input, y on the device meta, with the others' kernel called",
}


@pytest.fixture
def check(libraries: Libraries, cpu_runtime: backend.Runtime) -> Any:
    operators = libraries.operators(KERNELS)
    device = Backend("cpu", cpu_runtime)

    def check(name: str) -> CheckResult:
        rung, call = Rung(name, "the test's own"), getattr(operators, name)
        problem = ADD if name.startswith("pair") else ADD_ONE
        result = check_rung(problem, rung, call, device)
        return result if result.failure else check_bad_input(problem, rung, call, device)

    return check


@pytest.mark.parametrize("name", RIGHT)
def test_right_launchers_are_accepted(check: Any, name: str) -> None:
    result = check(name)
    assert result.failure is None, str(result.failure)
    assert result.checked


@pytest.mark.parametrize("name", WRONG)
def test_wrong_launchers_are_rejected(check: Any, name: str) -> None:
    failure = check(name).failure
    assert failure is not None, "accepted"
    assert re.search(WRONG[name], str(failure)), str(failure)
    if name in ("on_the_host", "host_looks", "writes_input", "misaligned"):
        assert names_line(str(failure), KERNELS, name), str(failure)
    assert check("right").failure is None, "the wrong launcher did lasting harm"
