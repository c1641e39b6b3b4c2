"""Stream capture and graphs: `cpu_kernels/graphs.cu` on the CPU backend, in each order of nodes and
threads, and on a GPU."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call, names_line

KERNELS = "graphs"
LIKE = torch.zeros(1)
THREADS = 64

ANY = -1  # a GPU's error is not documented
# An event during a capture; the codes of the event and of the capture's end, here; the same
# on a GPU. REFUSED is any code but 0.
REFUSED = -2
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED, WRONG_THREAD = range(905, 909)
ILLEGAL_STATE = 401
Codes = tuple[int, int]
REFUSALS: dict[str, tuple[Codes, Codes]] = {
    "cudaStreamSynchronize": ((UNSUPPORTED, INVALIDATED), (REFUSED, REFUSED)),
    "cudaStreamQuery": ((UNSUPPORTED, INVALIDATED), (REFUSED, REFUSED)),
    "cudaDeviceSynchronize": ((UNSUPPORTED, INVALIDATED), (REFUSED, REFUSED)),
    "cudaMalloc": ((UNSUPPORTED, INVALIDATED), (REFUSED, REFUSED)),
    "cudaMalloc, thread local": ((UNSUPPORTED, INVALIDATED), (REFUSED, REFUSED)),
    "cudaMalloc, relaxed": ((0, 0), (0, 0)),
    "cudaMalloc in another thread": ((UNSUPPORTED, INVALIDATED), (REFUSED, ANY)),
    "cudaMalloc in another thread, thread local": ((0, 0), (0, 0)),
    "a launch on the legacy stream": ((IMPLICIT, INVALIDATED), (REFUSED, REFUSED)),
    "cudaMemcpy": ((IMPLICIT, INVALIDATED), (REFUSED, REFUSED)),
    "status of the legacy stream": ((IMPLICIT, 0), (IMPLICIT, 0)),
    "cudaEventQuery": ((CAPTURED, INVALIDATED), (REFUSED, ANY)),
    "an event from outside": ((ISOLATION, INVALIDATED), (REFUSED, REFUSED)),
    "an event of another capture": ((MERGE, INVALIDATED), (REFUSED, ANY)),
    "begun twice": ((ILLEGAL_STATE, 0), (REFUSED, ANY)),
    "ended in another thread": ((WRONG_THREAD, 0), (WRONG_THREAD, ANY)),
    "not joined": ((0, UNJOINED), (0, UNJOINED)),
    "ended on another stream": ((UNMATCHED, 0), (REFUSED, ANY)),
    "a launch that cannot be": ((701, INVALIDATED), (ANY, ANY)),
    "the legacy stream; end without begin": ((UNSUPPORTED, ILLEGAL_STATE), (REFUSED, REFUSED)),
}


def agrees(got: int, want: int) -> bool:
    return want == ANY or (got != 0 if want == REFUSED else got == want)


def test_nothing_runs_while_it_is_captured_and_all_of_it_at_each_launch(call: Call) -> None:
    want = torch.full((THREADS,), 70.0)
    want[0] = 0
    assert torch.equal(call("captured_line", LIKE), want)


def test_launches_of_every_form_keep_their_arguments(call: Call) -> None:
    assert call("captured_forms", LIKE).tolist() == [129.0] * THREADS


def test_copies_and_fills(call: Call) -> None:
    want = torch.zeros(8, 16)
    want[:, :4] = torch.arange(64).reshape(8, 8)[:, :4]
    want[:, 8:] = torch.tensor(0x01010101, dtype=torch.int32).view(torch.float32)
    want[7, 14:] = torch.tensor([3.0, 4.0])
    assert torch.equal(call("captured_copies", LIKE).reshape(8, 16), want)


def test_streams_fork_and_join(call: Call) -> None:
    assert call("fork_and_join", LIKE).tolist() == [-7.0] * THREADS


def test_a_missing_dependency_shows_in_some_order(
    operators: Any, cpu_runtime: backend.Runtime
) -> None:
    results = {}
    for order in ("forward", "reverse"):
        cpu_runtime.set_schedule(order)
        results[order] = operators.race(LIKE, False)[0].item()
    assert results == {"forward": 6, "reverse": 5}
    seen = set()
    for seed in range(8):
        cpu_runtime.set_schedule("random", seed)
        seen.add(operators.race(LIKE, False)[0].item())
    assert seen == {5, 6}


def test_with_the_dependency_all_orders_agree(call: Call) -> None:
    assert call("race", LIKE, True).tolist() == [6.0] * THREADS


def test_what_a_capture_forbids(call: Call) -> None:
    got = call("refusals", LIKE, exact=False).tolist()
    assert len(got) == 2 * len(REFUSALS)
    pairs = zip(got[::2], got[1::2], strict=True)
    wrong = []
    for (what, wants), codes in zip(REFUSALS.items(), pairs, strict=True):
        want = wants[call.device == "cuda"]
        if not all(map(agrees, codes, want)):
            wrong.append(f"{what}: {codes} instead of {want}")
    assert not wrong, "\n".join(wrong)


def test_a_graph_is_built_changed_and_cloned(call: Call) -> None:
    want = torch.tensor([9.0, 16.5, 4.5]).repeat_interleave(THREADS)
    assert torch.equal(call("built", LIKE), want)


def test_arguments_of_a_captured_launch_are_changed(call: Call) -> None:
    want = torch.full((THREADS,), 25.0)
    want[: THREADS // 2] = 125
    assert torch.equal(call("changed_arguments", LIKE), want)


def test_an_update_takes_over_arguments_of_the_same_graph_only(call: Call) -> None:
    assert call("updated", LIKE).tolist() == [105.0] * THREADS


def test_graphs_in_graphs(call: Call) -> None:
    assert call("nested", LIKE).tolist() == [6.0] * THREADS


def test_memory_that_a_graph_allocates(call: Call) -> None:
    assert call("allocations", LIKE).tolist() == [16.0] * THREADS


def test_a_description_for_graphviz(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "graph.dot"
    call("described", LIKE, str(path), exact=False)
    text = path.read_text()
    assert text.startswith("digraph") and "->" in text and "add" in text


def test_a_fault_names_the_kernel_and_its_launch(cpu_call: Call) -> None:
    with pytest.raises(RuntimeError, match="null pointer") as caught:
        cpu_call("faulty", LIKE)
    message = str(caught.value)
    assert "in kernel write_through_null, launched at" in message
    assert names_line(message, "graphs", "the launch")
    assert names_line(message, "graphs", "the access")
    assert cpu_call("race", LIKE, True)[0].item() == 6  # and the next call works


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("unnamed kernel", r"graphs\.cu:\d+: a kernel that cannot name itself has no address here"),
        ("circle", "dependencies of the graph's nodes form a cycle"),
    ],
)
def test_what_has_no_answer_here_says_so(operators: Any, what: str, answer: str) -> None:
    text = operators.without_answer(LIKE, what)
    assert re.search(answer, text), text


def test_streams_that_are_destroyed_while_they_are_captured(cpu_call: Call) -> None:
    assert cpu_call("streams_destroyed", LIKE) == UNJOINED
