"""Day 1: hello, GPU."""

import os

import torch

from common.day import Case, Exercise, Problem, Rung, played

TITLE = "Hello, GPU"
TEACHES = "What a GPU consists of, how a thread finds its index, and where it runs"
TOPICS = ("set-up", "device properties", "indexing", "PTX")
SOURCE = "hello_cuda.cu"
INTRODUCES = (
    "host",
    "device",
    "kernel",
    "launch",
    "thread",
    "block",
    "grid",
    "multiprocessor",
    "warp",
    "lane",
    "register",
    "L2 cache",
    "compute capability",
    "PTX",
)

EXERCISE = Exercise(
    function="global_indices_kernel",
    task=(
        "Give each thread its global index i, write out[i] = i, and, where `print` is true, "
        "print it with threadIdx.x, blockIdx.x and the number of threads of the grid."
    ),
    hints=(
        "A thread knows its place in its block (threadIdx.x), its block's place in the grid "
        "(blockIdx.x) and how many threads a block has (blockDim.x).",
        "The blocks before this one have blockIdx.x * blockDim.x threads together. gridDim.x is "
        "the number of blocks.",
        "i is blockIdx.x * blockDim.x + threadIdx.x. Nothing reaches beyond `out`: it has one "
        "element for each thread. For printf, %u prints an unsigned number and %d an int.",
    ),
)

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


def indices(like, blocks, threads):
    return torch.arange(blocks * threads, dtype=torch.int32, device=like.device)


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


def checked(name, inputs, reference, rung, shapes=((),)):
    cases = tuple(Case(shape) for shape in shapes)
    return Problem(name, inputs, reference, (rung,), cases, timed=False, outputs_exact=True)


COPIES_FROM_HOST = "it copies facts from the host with a cudaMemcpy that waits"
PROBLEMS = (
    checked(
        "facts",
        like,
        expected_facts,
        Rung("properties", "cudaGetDeviceProperties", not_captured=COPIES_FROM_HOST),
    ),
    checked(
        "name",
        like,
        expected_name,
        Rung("device_name", "text as bytes", not_captured=COPIES_FROM_HOST),
    ),
    checked(
        "global index",
        launch,
        indices,
        Rung("global_indices", "blockIdx · blockDim + threadIdx"),
        [(1, 1), (3, 7), (2, 1024), (65535, 1), (131, 33)],
    ),
    checked(
        "multiprocessor",
        launch,
        always_in_range,
        Rung("sm_ids", "PTX register %smid", not_captured=COPIES_FROM_HOST, load=sm_ids_in_range),
        [(1,), (1000,)],
    ),
)


def show(operators, device):
    """Prints the GPU's facts, eight hellos, and how the blocks were spread over it."""
    like = torch.empty(1, device=device)
    print(bytes(operators.device_name(like).tolist()).decode())
    for fact, value in zip(FACTS, operators.properties(like).tolist(), strict=True):
        print(f"  {fact:<42}{value:>16,}")
    operators.global_indices(like, 2, 4, True)
    if device.type == "cuda":
        torch.cuda.synchronize()  # the output of a kernel's printf appears when the host waits
    ids = operators.sm_ids(like, 264).tolist()
    print(f"264 blocks ran on {len(set(ids))} multiprocessors; the first ten on {ids[:10]}")
