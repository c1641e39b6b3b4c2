"""Day 76: grouped-query attention of one token, split over the whole GPU."""

if __name__ == "__main__":  # python days/day76/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day76

from functools import partial

import torch
from torch.nn.attention import SDPBackend

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid
from common.references.attention import attention_by, ragged_lengths, unused
from common.references.rivals import use_nvcc

TITLE = "Grouped-query attention and split-K decoding"
TEACHES = "A few heads and a long sequence on all multiprocessors: split, and merge what is split"
TOPICS = ("attention", "grouped-query attention", "Flash-Decoding", "KV cache", "mma", "cp.async")
SOURCE = "gqa_flash_decoding.cu"
INTRODUCES = ("grouped-query attention", "Flash-Decoding")

SCALE = 0.1


def inputs(case, draw):
    """Shape (B, H, G, T, D).

    What lies beyond the end of a sequence is NaN: no kernel may use it. Only q has the case's
    values: one NaN in a key makes every output of its head NaN.
    """
    B, H, G, T, D = case.shape
    q = draw(B, H * G, D)
    keys, values = (draw(B, H, T, D, values="normal") for _ in range(2))
    lengths = ragged_lengths(draw, B, T)
    if not draw.fast:
        beyond = unused(lengths, T)[:, None, :, None]
        keys.masked_fill_(beyond, torch.nan)
        values.masked_fill_(beyond, torch.nan)
    return q, keys, values, lengths, SCALE


def reference(q, keys, values, lengths, scale):
    H, T = keys.shape[1:3]
    beyond = unused(lengths, T)[:, None, None]
    grouped = q.unflatten(1, (H, q.shape[1] // max(H, 1)))
    scores = torch.einsum("bhgd,bhtd->bhgt", grouped, keys.to(q.dtype)) * scale
    p = scores.masked_fill(beyond, -torch.inf).softmax(-1)
    values = values.to(q.dtype).masked_fill(beyond[:, 0, :, :, None], 0)
    o = torch.einsum("bhgt,bhtd->bhgd", p, values).flatten(1, 2)
    return o.masked_fill((lengths <= 0)[:, None, None], 0)


def sdpa(backend, q, keys, values, lengths, scale):
    """All sequences fill the cache: a mask would only cost time. One query sees all keys, so
    is_causal, which aligns the first query with the first key, must stay False."""
    return attention_by(backend, q[:, :, None], keys, values, scale=scale, enable_gqa=True)[:, :, 0]


def sdpa_folded(backend, q, keys, values, lengths, scale):
    """The heads of a group as rows of one head: without a mask that is the same."""
    grouped = q.unflatten(1, (keys.shape[1], -1))
    return attention_by(backend, grouped, keys, values, scale=scale).flatten(1, 2)


def flashinfer(q, keys, values, lengths, scale):
    """Of one sequence, which fills the cache."""
    use_nvcc()
    from flashinfer import single_decode_with_kv_cache

    return single_decode_with_kv_cache(
        q[0], keys[0], values[0], "HND", use_tensor_cores=True, sm_scale=scale
    )[None]


def cost(case):
    B, H, G, T, D = case.shape
    elements = 2 * B * H * T * D + 2 * B * H * G * D  # keys and values, q and o
    return Cost(bytes=elements * case.itemsize, flops=4 * B * H * G * T * D, unit="tensor")


TYPES = ["bfloat16", "float16"]
# (B, H, G, T, D): around the 16 tokens of a tile and the 64 of a unit
SHAPES = [
    (1, 1, 1, 1, 64),
    (3, 2, 4, 70, 128),
    (2, 3, 8, 129, 64),
    (1, 2, 5, 515, 128),
    (4, 1, 16, 64, 64),
    (1, 1, 9, 16, 128),
    (1, 1, 4, 1330, 128),  # on a small card, several units per split
    (1, 1, 1, 65, 64),  # the smallest with two splits, whose accesses are traced
]
EMPTY = [(0, 2, 4, 8, 64), (2, 0, 1, 8, 64), (2, 1, 3, 0, 64), (2, 3, 0, 8, 64)]

PROBLEMS = (
    Problem(
        name="grouped-query decode",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("gqa_v1_one_block", "one block per head of keys"),
            Rung("gqa_v2_split", "split along the tokens, then merged"),
            Rung("gqa_v3_tensor_cores", "mma.sync, a ring of tiles per warp"),
            Rung("gqa_v4_one_launch", "the last block merges", target=Target(0.85, "read")),
        ),
        cases=(
            *grid([*SHAPES, *EMPTY], TYPES),
            *grid([(5, 2, 4, 100, 64)], TYPES, values="nonfinite"),
            *grid([(2, 2, 3, 300, 128)], TYPES, values="large"),
        ),
        refused=(
            Case((1, 1, 17, 8, 64), "bfloat16"),
            Case((1, 1, 2, 8, 32), "bfloat16"),
            Case((1, 2, 1, 8, 96), "bfloat16"),
        ),
        bench=Case((1, 8, 4, 131072, 128), "bfloat16"),
        bench_cpu=Case((1, 2, 4, 512, 128), "bfloat16"),
        cost=cost,
        pytorch=partial(sdpa, SDPBackend.FLASH_ATTENTION),
        libraries=(
            Library("cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION)),
            Library("folded", partial(sdpa_folded, SDPBackend.FLASH_ATTENTION)),
        ),
        rivals=(Library("FlashInfer", flashinfer),),
        tolerance=Tolerance(
            factor=8, why="sums over tokens are merged in another order than PyTorch's, in fp32"
        ),
    ),
)
