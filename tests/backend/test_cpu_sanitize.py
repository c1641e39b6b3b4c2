"""The debugger of the CPU backend reports planted faults, and reports nothing once they are fixed.

`cpu_kernels/sanitize.cu` has a kernel for each fault, which is right with `fixed`.
`common/cpu/DESIGN.md` counts the planted faults, and those of other suites.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from common.base.outcome import FAIL, PASS, SKIP, RungOutcome
from common.base.paths import ROOT
from common.check.device import MORE_SCHEDULES, SCHEDULES, Schedule
from common.cpu import backend
from common.tools import debugger
from tests import sanitize_worker
from tests.command_line import CommandLine
from tests.kernel_files import ORDERS, source

KERNELS = "sanitize"
LINES = {
    name: number
    for number, line in enumerate(source(KERNELS).read_text().splitlines(), 1)
    for name in re.findall(r"// line: (\w+)", line)
}

# Elements of the tensors, words of the message, and the thread that it names in forward order.
ADDRESSES = {
    "read_beyond": (61, "reads 4 bytes, 4 bytes beyond the end of argument x: index 61, and", 60),
    "write_beyond": (61, "writes 4 bytes, 4 bytes beyond the end of argument out: index 61", 61),
    "read_before": (61, "reads 4 bytes, 4 bytes before the start of argument x: index -1", 0),
    "no_tail_guard": (61, "beyond the end of argument x: index 61, and it has 61 elements", 61),
    "vector_tail": (61, "reads 16 bytes, 12 bytes beyond the end of argument x: from index 60", 15),
    "atomic_beyond": (61, "4 bytes beyond the end of argument out: index 61", 60),
    "use_after_free": (61, "in an allocation of 256 bytes, which has been freed", 0),
    "graph_memory": (61, "in an allocation of 256 bytes, which has been freed", 0),
    "device_variable": (64, "4 bytes beyond the end of the variable device_table", 63),
    "constant_variable": (64, "4 bytes beyond the end of the variable constant_table", 5),
    "copy_beyond": (61, "reads 16 bytes, 12 bytes beyond the end of argument x: from index 60", 15),
    "bulk_copy_beyond": (61, "reads 256 bytes, 12 bytes beyond the end of argument x", 0),
    "tensor_load_beyond": (64, r"128 bytes beyond the end of __shared__ .*half\[4\]\[8\]", 0),
    "tensor_store_beyond": (64, r"128 bytes beyond the end of __shared__ .*half\[4\]\[8\]", 0),
    "tensor_map_beyond": (64, "reads 288 bytes, 32 bytes beyond the end of argument x", 0),
    "wgmma_beyond": (64, r"16 bytes beyond the end of __shared__ .* b\[2\]\[8\]\[8\]", 31),
    "shared_beyond": (64, r"4 bytes beyond the end of __shared__ float row\[THREADS\]", 63),
    "into_the_next_array": (64, r"end of __shared__ float first\[THREADS / 2\]", 32),
    "dynamic_beyond": (64, "4 bytes beyond the end of __shared__ memory, the dynamic part", 32),
    "tile_row_beyond": (64, r"4 bytes beyond the end of __shared__ float tile\[8\]\[8\]", 56),
    "local_beyond": (64, r"4 bytes beyond the end of the local array last \(32 bytes\)", 8),
    "local_before": (64, r"4 bytes before the start of the local array ring \(32 bytes\)", 0),
    "out_of_scope": (64, "in the local variable candidate, whose scope has ended", 0),
}
LOCALS = ["unset_sum", "unset_branch", "unset_element"]
PATTERN = torch.tensor(-0x01010102, dtype=torch.int32).view(torch.float32).item()  # 0xfefefefe


@pytest.fixture(scope="module")
def watched() -> dict[str, Any]:
    """Return each kernel's message and result in a build that watches addresses, by name and
    order."""
    try:
        environment = sanitize_worker.environment()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    elements = {name: elements for name, (elements, _, _) in ADDRESSES.items()}
    elements |= dict.fromkeys([*LOCALS, "tensor_from_nowhere", "misaligned_vector"], 64)
    command = [sys.executable, "-m", "tests.sanitize_worker", json.dumps(elements)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}{order[1] or ''}")
@pytest.mark.parametrize("name", ADDRESSES)
def test_accesses_out_of_bounds(watched: dict[str, Any], name: str, order: tuple[str, int]) -> None:
    _, message, thread = ADDRESSES[name]
    found = watched[f"{name} {order[0]} {order[1]}"]
    assert found["fixed"]["said"] == ""
    said = found["planted"]["said"]
    assert "out of bounds: this thread " in said
    assert f"tests/cpu_kernels/sanitize.cu:{LINES[name]}\n" in said
    assert re.search(rf"in kernel {name}, launched at \S*/sanitize\.cu:\d+", said)
    assert re.search(r"block \(\d,0,0\) thread \(\d+,0,0\)", said)
    if order[0] == "forward":
        assert re.search(message, said), said
        assert f"thread ({thread},0,0)" in said


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}{order[1] or ''}")
def test_a_tensor_that_is_not_there(watched: dict[str, Any], order: tuple[str, int]) -> None:
    found = watched[f"tensor_from_nowhere {order[0]} {order[1]}"]
    assert found["fixed"]["said"] == ""
    said = found["planted"]["said"]
    assert "illegal memory access at address 0x" in said
    # The line of the copy, not the line of the runtime that executes it later.
    assert f"tests/cpu_kernels/sanitize.cu:{LINES['tensor_load_beyond']}\n" in said


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}{order[1] or ''}")
def test_vectors_that_are_not_aligned(watched: dict[str, Any], order: tuple[str, int]) -> None:
    found = watched[f"misaligned_vector {order[0]} {order[1]}"]
    assert found["fixed"]["said"] == ""
    said = found["planted"]["said"]
    assert re.search(r"misaligned: this thread reads '.*float4' at an address that is not a", said)
    assert re.search(r"multiple of 16 bytes, index \d+ of argument x", said)
    assert f"tests/cpu_kernels/sanitize.cu:{LINES['misaligned_vector']}\n" in said


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}{order[1] or ''}")
@pytest.mark.parametrize("name", LOCALS)
def test_locals_that_are_never_set(
    watched: dict[str, Any], name: str, order: tuple[str, int]
) -> None:
    found = watched[f"{name} {order[0]} {order[1]}"]
    assert found["planted"]["said"] == found["fixed"]["said"] == ""
    assert any(abs(value / PATTERN - 1) < 0.01 for value in found["planted"]["out"])
    assert all(abs(value) < 1000 for value in found["fixed"]["out"])


# ---------------------------------------------------------------- orders

# The number of elements, and one of the schedules that must give another result than forward
# order does.
RACES = {
    "no_barrier": (64, Schedule("reverse")),
    "overwritten_too_early": (64, Schedule("reverse")),
    "no_syncwarp": (64, Schedule("reverse")),
    "last_block_wins": (64, Schedule("forward", blocks="reverse")),
    "blocks_in_place": (64, Schedule("forward", blocks="reverse")),
    "sum_in_any_order": (64, Schedule("reverse")),
    "waits_for_one_too_few": (64, Schedule("reverse", blocks="forward", completion="early")),
    "source_changed_under_a_copy": (64, Schedule("reverse", blocks="forward", completion="early")),
}


@pytest.fixture
def runtime(operators: object, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the CPU backend with default settings, with the operators loaded."""
    return cpu_runtime


def _result(
    runtime: backend.Runtime, name: str, elements: int, fixed: bool, schedule: Schedule
) -> bytes:
    runtime.set_schedule(schedule.order, schedule.seed, schedule.blocks, schedule.completion)
    runtime.set_threads(1)
    x, out = sanitize_worker.inputs(elements, more=1)
    torch.ops.test_sanitize.run(x, out, name, elements, fixed)
    return out.numpy().tobytes()


@pytest.mark.parametrize("name", RACES)
def test_results_that_depend_on_an_order(runtime: backend.Runtime, name: str) -> None:
    elements, telling = RACES[name]
    schedules = (*SCHEDULES, *MORE_SCHEDULES)
    assert telling in schedules
    fixed = {_result(runtime, name, elements, True, schedule) for schedule in schedules}
    assert len(fixed) == 1
    first = _result(runtime, name, elements, False, SCHEDULES[0])
    assert _result(runtime, name, elements, False, telling) != first


# ---------------------------------------------------------------- waits

WAITS = {
    "barrier_in_a_branch": (64, "divergent barrier: this thread is in __syncthreads while"),
    "mask_of_absent_lanes": (64, "__shfl_xor_sync at .*mask 0xffffffff, for lanes 0xffff0000"),
    "too_few_bytes": (64, "phase of parity 0, where 1 of 1 arrivals have come and 128 bytes are"),
    "wrong_parity": (64, "phase of parity 1, where 0 of 64 arrivals have come"),
    "too_few_warps": (64, "bar.sync: barrier 1 for 128 threads; it must be"),
    "flag_never_set": (64, "no thread makes progress: all of them wait for another to act"),
    "loop_without_end": (
        64,
        "a thread has run for 0.3 s and reached neither a barrier nor its end",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_in_vain(runtime: backend.Runtime, name: str) -> None:
    elements, message = WAITS[name]
    runtime.set_spin_limit(0.3)
    runtime.set_stuck_limit(0.3)
    for order, seed in ORDERS:
        runtime.set_schedule(order, seed)
        x, out = sanitize_worker.inputs(elements, more=1)
        torch.ops.test_sanitize.run(x, out, name, elements, True)
    runtime.set_schedule("forward")
    x, out = sanitize_worker.inputs(elements, more=1)
    with pytest.raises(RuntimeError, match=message) as caught:
        torch.ops.test_sanitize.run(x, out, name, elements, False)
    said = str(caught.value)
    assert f"/sanitize.cu:{LINES[name]}" in said
    assert f"in kernel {name}, launched at" in said
    assert re.search(r"block \(\d,0,0\) thread \(\d+,0,0\)", said)


def test_a_compiler_without_an_address_sanitizer_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"clang\+\+-19: .* needs g\+\+"):
        backend.preloaded("/usr/bin/clang++-19")


def test_a_remark_of_a_rung_in_two_problems_is_reported_once() -> None:
    remark = "two runs are not compared bit for bit: atomics"
    rungs = [RungOutcome(name, "sum_v1", "", PASS, asides=[remark]) for name in ("one", "two")]
    assert debugger.judge_orders(debugger.Pass(rungs)).remarks == [f"sum_v1: {remark}"]


def _failed(rung: str, reason: str, *details: str, races: bool = False) -> RungOutcome:
    found = [{"what": "race", "places": ["a", "a"], "summary": "", "details": []}] * races
    return RungOutcome("p", rung, "", FAIL, reason, list(details), findings=found)


def test_locals_are_blamed_only_for_what_nothing_else_explains() -> None:
    """Rungs that are wrong if locals begin with a pattern: one has a race, one is wrong by chance,
    one is wrong if accesses are watched, and one reads a local that was never set."""
    wrong = [_failed(name, "all wrong", "got 1") for name in ("race", "chance", "watched", "unset")]
    right = [RungOutcome("p", name, "", PASS) for name in ("race", "chance", "watched", "unset")]
    ordered, watched = debugger.Pass(right), debugger.Pass(wrong)
    odd = debugger.wrong_there_alone(ordered, watched)
    assert odd == wrong
    traced = debugger.Pass([_failed("race", "by its accesses", races=True), *right[1:]])
    again = debugger.Pass([right[0], _failed("chance", "all wrong", "got 2"), *wrong[2:]])
    zeroed = debugger.Pass([*right[:2], wrong[2], _failed("unset", "all wrong", "got 0")])
    causes = debugger.why_wrong_there(odd, traced, again, zeroed)
    assert {cause: [rung.rung for rung in rungs] for cause, rungs in causes.items()} == {
        debugger.RACED: ["race"],
        debugger.CHANCE: ["chance"],
        debugger.ANYWAY: ["watched"],
        debugger.LOCAL: ["unset"],
    }
    blamed = debugger.judge_locals(watched, "", causes)
    assert blamed.status == FAIL and blamed.reason.startswith("unset: all wrong (only where local")
    assert not blamed.details[1:], "and no other rung"
    addresses = debugger.judge_addresses(ordered, watched, "", causes)
    assert addresses.status == FAIL, "what no other row has, fails this one"
    text = "\n".join([addresses.reason, *addresses.details])
    assert "chance: all wrong (only where accesses are watched; another run" in text
    assert "watched: all wrong (" in text and "race" not in text and "unset" not in text
    del causes[debugger.LOCAL]
    cannot = debugger.judge_locals(watched, "", causes)
    assert cannot.status == SKIP
    assert cannot.reason.startswith("cannot tell: race is wrong where local") and "a race" in (
        cannot.reason
    )
    assert debugger.judge_locals(debugger.Pass(right), "", {}).status == PASS


def test_a_wrong_result_after_an_early_return_is_a_fault_of_waiting() -> None:
    said = (
        "40 of 64 threads of block (0,0,0) had returned when the others met in __syncthreads at x"
    )
    early = _failed("early", "all wrong", f"hint: {said}: was something left?", "hint: NaN")
    row = debugger.judge_waits(debugger.Pass([early, _failed("other", "all wrong", "hint: NaN")]))
    assert row.status == FAIL and row.reason.startswith(f"early: {said}")
    assert row.details == ["the result is wrong: all wrong"]
    assert debugger.judge_waits(debugger.Pass([_failed("other", "all wrong")])).status == PASS


# ---------------------------------------------------------------- the command

# For a row of the report: the rung that fails, and words of its message.
ROWS = {
    "orders": r"twice_late_block: .* depends on the order in which threads run: a race",
    "waits": r"twice_deadlock: .*no thread makes progress: all of them wait for another to act",
    "addresses": r"twice_beyond: .*4 bytes beyond the end of argument x \(float32, ",
    "locals": r"twice_unset: .*\(only where local variables begin with a pattern",
    "races": r"twice_race: race on .*row",
    "unwritten": r"twice_unwritten: .*reads .*least.*, which nothing has written",
}


def test_the_command_finds_each_fault() -> None:
    run = CommandLine(ROOT / "tests" / "sanitize_days")
    done = run("1", "--sanitize")
    shown = done.stdout
    assert done.returncode == 1
    text = re.sub(r"\s+", " ", shown)
    for row, said in ROWS.items():
        assert re.search(rf" {row} FAIL .*?{said}", text), shown
    lines = (ROOT / "tests" / "sanitize_days" / "day01" / "twice.cu").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if "// line: " in line:
            assert f"day01/twice.cu:{number}" in shown, line
    assert "twice_right" not in text and "twice_left_rightly" not in text
    early = r"twice_left_early: \d+ of 64 threads of block .* had returned when the others met in"
    assert re.search(rf" waits FAIL .*?{early} __syncthreads at .*? addresses ", text), shown
    mask = "twice_mask: 1 float32: __shfl_sync: the mask 0xffffffff names lanes 1 to 31, which"
    assert re.search(rf" waits FAIL .*?{mask} returned and never made.*? addresses ", text), shown
    fresh = r"twice_fresh: .*? reads index 0 of tensor 1 .*?, which nothing has written"
    assert re.search(rf" unwritten FAIL .*?{fresh}", text), shown
    assert not run.alive()
