"""What the day's `show` proves: the table's arithmetic, equal bits, and the longest wait of each
rung, counted."""

import torch

from common.base.outcome import RungOutcome, Timing
from common.day import print_table
from common.report.markdown import Stored
from common.report.stored import read_stored

from .gradient import FREQUENT, TEXT, WORDS, embedding_backward, problems
from .roofline import cells, show_all, standings

WARPS, LANES, CHUNK = 16, 32, 8  # of a block; of a warp; elements of bf16 in 16 bytes

# ---------------------------------------------------------------- the arithmetic of the table


def stored_example(day, timing, met=None):
    where = {"device": "cuda", "gpu": "Some GPU"}
    slow = Timing("case", 10 * timing.ms, 0.0, 10, timing.gbs and timing.gbs / 10)
    rungs = [RungOutcome("p", "v1", "", "PASS", timing=slow)]
    rungs.append(RungOutcome("p", "v2", "", "PASS", timing=timing, target="t", target_met=met))
    return Stored(day, where, rungs)


def check_arithmetic():
    """Raises RuntimeError where the table of three made-up days is not what it must be."""
    # 2000 GB/s of a card that copies 4000; 900 of 1000 TFLOP/s; 1000 GB/s in L2.
    copies = Timing("c", 1.0, 0.0, 10, 2000.0, 4.0, "copy", 0.5, pytorch_ms=2.0)
    multiplies = Timing("c", 2.0, 0.0, 10, 100.0, 900.0, "tensor", 0.9)
    small = Timing("c", 0.1, 0.0, 10, 1000.0, note="events, mostly in L2")
    host = Timing("c", 5.0, 0.0, 10, note="host clock")
    given = [(1, host), (2, small), (3, copies), (4, multiplies)]
    found = standings([stored_example(day, t, met=day == 3) for day, t in given])
    table = [cells(each) for each in found]
    expected = [
        ["  4 v2", "9e+03", "tensor", "90%", "2", "", "missed"],
        ["  3 v2", "2", "copy", "50%", "1", "2.00", "met"],
        ["  2 v2", "", "L2", "25%", "0.1", "", "missed"],
        ["  1 v2", "", "", "", "5", "", "missed"],
    ]
    if table != expected:
        raise RuntimeError(f"the table of made-up days: expected {expected}, got {table}")


# ---------------------------------------------------------------- the count


def steps_by_four(rows):
    """Loads that wait for the ones before, where a loop over rows is unrolled four times: four rows
    per step, the rest one by one."""
    return rows // 4 + rows % 4


def steps_by_eight(rows):
    """The same in batches of 8, 4, 2 and 1."""
    return rows // 8 + bin(rows % 8).count("1")


def shared_by_warps(rows):
    """The steps of the slowest of 16 warps that share a word: equal lengths, but for the last."""
    length = -(-rows // WARPS)
    return max(steps_by_four(length), steps_by_four(rows % length)) if rows else 0


def longest_waits(counts, C):
    """The largest number of steps that a warp, or a block, takes one after the other, by rung.

    counts: rows of each word, in the order of the words, a multiple of 16.
    """
    passes = -(-C // (LANES * CHUNK))
    often = [rows if rows > FREQUENT else 0 for rows in counts]
    blocks = [often[i : i + WARPS] for i in range(0, len(often), WARPS)]
    return {
        "day 82, v2: a warp per word": max(passes * steps_by_four(rows) for rows in counts),
        "v1, day 82's v3: a block in turn": max(
            passes * sum(shared_by_warps(rows) for rows in block) for block in blocks
        ),
        "v2 and v3: a piece": max(steps_by_eight(min(rows, FREQUENT)) for rows in counts),
        "v2 and v3: the parts of a word": max(-(-rows // FREQUENT) for rows in often),
    }


def timed_tokens(device, n=8192, words=WORDS):
    """Drawn as those of the timed case are, from other random numbers."""
    chance = torch.rand(n, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return ((words + 1) ** chance - 1).long().clamp_(max=words - 1).to(device)


def print_waits(device, C=768):
    """Counts, for tokens like the timed ones. Raises RuntimeError where a formula is wrong."""
    if [steps_by_four(n) for n in (4, 7, 33)] != [1, 4, 9]:
        raise RuntimeError("steps of four")
    if [steps_by_eight(n) for n in (8, 31, 32, 1)] != [1, 6, 4, 1]:
        raise RuntimeError("steps of eight")
    tokens = timed_tokens(device)
    counts = torch.bincount(tokens, minlength=-(-WORDS // WARPS) * WARPS)
    first = int(counts[:WARPS].sum())
    frequent = counts[counts > FREQUENT]
    print(
        f"{len(tokens)} tokens name {int((counts > 0).sum())} words. {len(frequent)} words have "
        f"more than {FREQUENT} rows, together {int(frequent.sum())}; words 0 to {WARPS - 1} have "
        f"{first}, the most frequent one {int(counts.max())}."
    )
    found = longest_waits(counts.tolist(), C)
    print_table(["steps that wait for one another", "at most"], list(found.items()))


# ---------------------------------------------------------------- the bits


def check_bits(operators, device):
    """v2 and v3 give the same bits, and each gives those of its last run: sums have an order."""
    n, C, words = (8192, 768, 5000) if device.type == "cuda" else (500, 8, 60)
    generator = torch.Generator().manual_seed(99)
    upstream = torch.randn(n, C, generator=generator).to(device, torch.bfloat16)
    tokens = timed_tokens(device, n, words)
    calls = [operators.embedding_grad_v2_parts, operators.embedding_grad_v3_zeros_beside]
    results = [call(upstream, tokens, words) for call in calls for _ in range(2)]
    if not all(torch.equal(result, results[0]) for result in results):
        raise RuntimeError("v2 and v3 differ in bits, or from run to run")
    truth = embedding_backward(upstream.double(), tokens, words)
    off = float((results[0].double() - truth).norm() / truth.norm())
    if not off < 2**-8:
        raise RuntimeError(f"the parts are off by {off:.3g} of the norm")
    print("v2 and v3 have equal bits in each run")


def show(operators, device):
    """Prints the proofs, then the table of all days; returns the rooflines as SVGs."""
    assert problems[0].bench.shape == (8192, 768, 0, TEXT)  # what the count is about
    check_arithmetic()
    check_bits(operators, device)
    print_waits(device)
    return show_all(read_stored())
