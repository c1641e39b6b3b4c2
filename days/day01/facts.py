"""What the rungs must report: the GPU's facts by PyTorch, or those of the card that is played."""

import ctypes
import difflib
import os
import re
import tempfile
from collections import Counter

import torch

from common.base.outcome import Mistake
from common.cpu.models import played

# Each fact, and PyTorch's name of it.
FACTS = {
    "compute capability, major": "major",
    "compute capability, minor": "minor",
    "multiprocessors": "multi_processor_count",
    "bytes of memory": "total_memory",
    "bytes of L2 cache": "L2_cache_size",
    "threads per warp": "warp_size",
    "threads per block, maximum": "",
    "threads per multiprocessor": "max_threads_per_multi_processor",
    "registers per multiprocessor": "regs_per_multiprocessor",
    "bytes of shared memory per block, maximum": "shared_memory_per_block_optin",
    "clock, kHz": "clock_rate",
}


MAX_THREADS = 1024  # per block, on every GPU since compute capability 2.0; PyTorch has no name


def facts_on_cpu():
    """The facts that the CPU backend reports: those of the card that it plays, with the memory of
    this machine and a clock of 0."""
    card = played()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    capability = divmod(card.capability, 10)
    limits = (card.threads, 65536, card.shared_opt_in)
    return *capability, card.multiprocessors, memory, card.l2, 32, 1024, *limits, 0


def like(case, draw):
    return (draw(1),)


def expected_facts(like):
    """The same facts as PyTorch reports them; on the CPU backend, as the operating system does."""
    if like.device.type == "cpu":
        facts = facts_on_cpu()
    else:
        gpu = torch.cuda.get_device_properties(like.device)
        facts = [getattr(gpu, name) if name else MAX_THREADS for name in FACTS.values()]
    return torch.tensor(facts, device=like.device)


def expected_name(like):
    on_cpu = like.device.type == "cpu"
    played_name = f"CPU backend (model {played().name})"
    name = played_name if on_cpu else torch.cuda.get_device_name(like.device)
    return torch.tensor(list(name.encode()), dtype=torch.uint8, device=like.device)


def launch(case, draw):
    return (draw(1), *case.shape)


def in_words(case):
    """A case of `launch`: "2 blocks of 4 threads"."""
    blocks, *threads = case.shape
    words = f"{blocks} block{'s' * (blocks != 1)}"
    return words + "".join(f" of {number} thread{'s' * (number != 1)}" for number in threads)


def indices(like, blocks, threads):
    return torch.arange(blocks * threads, dtype=torch.int32, device=like.device)


LINE = "hello from thread {} of block {}: I am number {} of {}"


def rows_of(blocks, threads):
    """The numbers of each line that global_indices prints, in the order of the threads' indices:
    thread, block, index, number of threads."""
    count = blocks * threads
    return [(i % threads, i // threads, i, count) for i in range(count)]


def expected_lines(like, blocks, threads):
    """Return `rows_of` as (blocks * threads, 4) int64."""
    return torch.tensor(rows_of(blocks, threads), device=like.device)


def rows_in(text, blocks, threads):
    """Return the numbers of the lines in a text, in the order of their indices.

    Raises Mistake, with the nearest line that there is, unless there is one for each thread."""
    pattern = re.compile(LINE.format(*[r"(\d+)"] * 4))
    found = [tuple(map(int, row)) for row in pattern.findall(text)]
    expected = rows_of(blocks, threads)
    missing, more = (Counter(a) - Counter(b) for a, b in ((expected, found), (found, expected)))
    if not missing and not more:
        return sorted(found, key=lambda row: row[2])
    line = LINE.format(*(next(iter(missing or more)) if found else expected[-1]))
    if not found:
        said = f"no line of the form `{line}` was printed"
    else:
        said = f"`{line}` was {'not printed' if missing else 'printed too often'}"
    printed = text.splitlines()
    nearest = difflib.get_close_matches(line, printed, n=1, cutoff=0)
    near = (
        f"the nearest line that was printed: `{nearest[0]}`" if nearest else "nothing was printed"
    )
    raise Mistake(f"{said}\n{near}\n{len(expected)} lines are expected, one from each thread")


def printed(builder):
    """Runs global_indices and reads what its threads print, which comes in any order."""
    operators = builder.operators()

    def lines(like, blocks, threads):
        flush = ctypes.CDLL(None).fflush  # what printf keeps goes out
        with tempfile.TemporaryFile() as file:
            flush(None)
            before = os.dup(1)
            os.dup2(file.fileno(), 1)
            try:
                operators.global_indices(like, blocks, threads, True)
                if like.is_cuda:
                    torch.cuda.synchronize()
                flush(None)
            finally:
                os.dup2(before, 1)
                os.close(before)
            file.seek(0)
            text = file.read().decode()
        return torch.tensor(rows_in(text, blocks, threads), device=like.device)

    return lines


def sm_ids_in_range(builder):
    """No reference can predict the output of sm_ids, so the check is that each number belongs to
    one of the GPU's multiprocessors."""
    operators = builder.operators()

    def in_range(like, blocks):
        ids = operators.sm_ids(like, blocks)
        multiprocessors = operators.properties(like)[2]
        return (ids >= 0) & (ids < multiprocessors)

    return in_range


def always_in_range(like, blocks):
    return torch.ones(blocks, dtype=torch.bool, device=like.device)
