"""Random words and normal numbers: the formulas that the kernels are checked against."""

from functools import cache

import torch

from common.day import Case, Problem, Rung
from common.references.philox import philox_words

WORD = 0xFFFFFFFF

# Random123 1.14.0, kat_vectors, philox4x32 with 10 rounds: (counter, key, result).
PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def known(device):
    """The published counters and keys as tensors (seed, step, group), and the results."""

    def joined(low, high):
        return torch.tensor([low, high - (high >> 31 << 32)]).mul(torch.tensor([1, 2**32])).sum()

    rows = [(joined(*k), joined(*c[:2]), joined(*c[2:])) for c, k, _ in PUBLISHED]
    inputs = [torch.stack(column).to(device) for column in zip(*rows, strict=True)]
    return inputs, torch.tensor([result for *_, result in PUBLISHED], device=device)


def words_of_pytorch(seed, step, device):
    """The words that torch draws on a GPU for its groups 0, 1, …: (groups, 4).

    Each of `groups` threads draws four words; as 64-bit integers, PyTorch puts the first two into
    element `thread`, the last two into element `groups + thread`.
    """
    card = torch.cuda.get_device_properties(device)
    groups = card.multi_processor_count * (card.max_threads_per_multi_processor // 256) * 256
    generator = torch.Generator(device).manual_seed(seed)
    generator.set_offset(4 * step)
    pairs = torch.empty(2 * groups, dtype=torch.int64, device=device)
    pairs.random_(-(2**63), None, generator=generator)
    first, second = pairs.view(2, groups)
    return torch.stack([first >> 32, first, second >> 32, second], -1) & WORD


@cache
def proven(device):
    """Raises RuntimeError unless `philox_words` gives what is published, and what PyTorch draws."""
    inputs, results = known(device)
    if not torch.equal(philox_words(*inputs), results):
        raise RuntimeError("philox_words() differs from the results that Random123 publishes")
    if device.type == "cuda":
        theirs = words_of_pytorch(2**40 + 33, 5, device)
        group = torch.arange(len(theirs), device=device)
        mine = philox_words(torch.full_like(group, 2**40 + 33), torch.full_like(group, 5), group)
        if not torch.equal(mine, theirs):
            raise RuntimeError("philox_words() differs from the words of PyTorch's CUDA generator")


def words_reference(seed, step, group):
    proven(seed.device)
    found = philox_words(seed, step, group)
    return (found - (found >> 31 << 32)).to(torch.int32)


def normals(state, dtype, rows, cols, *, bits=32):
    """The noise of (rows, cols) for a state (seed, step): Box and Muller's formula in `dtype`, on
    the four words of a group or, with 16 bits, on their eight halves, lower ones first."""
    proven(state.device)
    count = 4 * 32 // bits
    groups = (cols + count - 1) // count
    row = torch.arange(rows, device=state.device)[:, None]
    group = ((row << 32) + torch.arange(groups, device=state.device)).flatten()
    drawn = philox_words(state[0].expand_as(group), state[1].expand_as(group), group)
    if bits == 16:
        drawn = torch.stack([drawn & 0xFFFF, drawn >> 16], -1)
    first, second = drawn.view(-1, 2).to(dtype).unbind(-1)
    radius = (-2 * (first * 2**-bits + 2 ** -(bits + 1)).log()).sqrt()
    angle = (second + 0.5) * (torch.pi * 2 ** (1 - bits))
    z = torch.stack([radius * angle.sin(), radius * angle.cos()], -1)
    return z.view(rows, count * groups)[:, :cols]


def words_inputs(case, draw):
    """The published vectors, then random 64-bit integers."""
    inputs, _ = known(draw.device)
    drawn = [draw(*case.shape, dtype="int64") for _ in inputs]
    for mine, theirs in zip(drawn, inputs, strict=True):
        count = min(len(mine), len(theirs))
        mine[:count] = theirs[:count]
    return tuple(drawn)


WORDS = Problem(
    name="random words",
    inputs=words_inputs,
    reference=words_reference,
    rungs=(Rung("philox_words", "Philox4x32-10, the stream of cuRAND and PyTorch"),),
    cases=tuple(Case((n,), "int64") for n in (5, 1, 256, 1003, 0)),
    timed=False,
    outputs_exact=True,
)
