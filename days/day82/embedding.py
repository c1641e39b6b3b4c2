"""The embedding: cases, formulas, rungs."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

GPT2 = 50257  # words; what a 0 in a case's shape stands for


def words_of(case):
    return case.shape[2] or GPT2


def text(draw, n, words):
    """n tokens as in natural text: word w is about as frequent as 1 / (w + 1) (Zipf's law)."""
    tokens = draw(n, dtype="int64", low=0, high=max(words, 1))
    chance = draw(n, dtype="float32", values="uniform").double()
    return tokens.copy_(((words + 1) ** chance - 1).long().clamp_(max=max(words - 1, 0)))


def mistake_some(tokens, words):
    """Some tokens that name no word."""
    tokens[1::4] = words
    tokens[2::7] = -1
    tokens[3::9] = 2**40


def wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


# ---------------------------------------------------------------- forward


def to_look_up(case, draw):
    """All words are equally frequent: rows that are read again would come from L2."""
    n, C, _ = case.shape
    return draw(words_of(case), C), draw(n, dtype="int64", low=0, high=words_of(case))


def embedding(weight, tokens):
    """The rows of the tokens; NaN for a token that names no word."""
    if tokens.dim() != 1:
        raise ValueError(f"tokens: one dimension, not {tokens.dim()}")
    valid = (tokens >= 0) & (tokens < len(weight))
    out = weight.new_full((len(tokens), weight.shape[1]), torch.nan)
    out[valid] = weight[tokens[valid]]
    return out


def by_pytorch(weight, tokens):
    return F.embedding(tokens, weight)


forward = Problem(
    name="embedding",
    inputs=to_look_up,
    reference=embedding,
    rungs=(
        Rung("embedding_v1_element", "one thread per element"),
        Rung("embedding_v2_chunks", "one warp per token, 16 bytes", target=Target(0.9, "copy")),
    ),
    cases=(
        *grid([(1, 1, 1), (33, 40, 7), (16, 127, 50), (19, 1160, 5)], FLOATS),
        *grid([(0, 8, 4), (5, 0, 4)], ["float32"]),
        *grid([(17, 24, 9)], FLOATS, "nonfinite"),
    ),
    bench=Case((65536, 4096, 128256), "bfloat16"),  # Llama 3 has so many words
    bench_cpu=Case((64, 256, 500), "bfloat16"),
    cost=lambda case: Cost(bytes=2 * case.shape[0] * case.shape[1] * case.itemsize),
    pytorch=by_pytorch,
    libraries=(COMPILE,),
    outputs_exact=True,
)


def wrong_to_look_up(case, draw):
    weight, tokens = to_look_up(case, draw)
    mistake_some(tokens, len(weight))
    return weight, tokens


wrong_tokens = replace(
    forward,
    name="embedding of tokens that name no word",
    inputs=wrong_to_look_up,
    rungs=tuple(replace(rung, target=None) for rung in forward.rungs),
    cases=grid([(40, 24, 9), (40, 7, 9)], FLOATS),
    timed=False,
)

# ---------------------------------------------------------------- backward


def to_add_up(case, draw):
    n, C, _ = case.shape
    return draw(n, C), text(draw, n, words_of(case)), words_of(case)


def embedding_backward(upstream, tokens, words):
    """The sum of the rows of each word, rounded once; tokens that name no word are left out."""
    if upstream.dim() != 2 or tokens.shape != upstream.shape[:1]:
        raise ValueError(f"tokens: {len(upstream)} expected, got {tuple(tokens.shape)}")
    valid = (tokens >= 0) & (tokens < words)
    sums = wide(upstream.new_zeros(words, upstream.shape[1]))
    return sums.index_add_(0, tokens[valid], wide(upstream[valid])).to(upstream.dtype)


def backward_by_pytorch(upstream, tokens, words):
    """What F.embedding's backward pass calls."""
    return torch.ops.aten.embedding_dense_backward(upstream, tokens, words, -1, False)


def backward_cost(case):
    n, C, _ = case.shape
    return Cost(bytes=(n + words_of(case)) * C * case.itemsize, flops=n * C)


backward = Problem(
    name="embedding, backward",
    inputs=to_add_up,
    reference=embedding_backward,
    rungs=(
        Rung(
            "embedding_grad_v1_atomics",
            "zeros, atomicAdd in fp32, narrowed",
            not_repeatable="atomicAdd in any order",
        ),
        Rung("embedding_grad_v2_sorted", "one warp per word, rows in order"),
        Rung(
            "embedding_grad_v3_frequent_words",
            "a block per word of many rows",
            target=Target(2.0, "pytorch"),
        ),
    ),
    cases=(
        # Words without a token, of one, of more than a warp sums alone; more than one tile.
        *grid([(1, 1, 1), (40, 40, 7), (300, 24, 40), (70, 130, 3), (600, 9, 2)], FLOATS),
        *grid([(0, 8, 4), (5, 0, 4), (0, 0, 3)], ["float32", "bfloat16"]),
        *grid([(16700, 1, 600)], ["float32"]),  # tiles of more than 256 positions
        *grid([(50, 24, 9)], FLOATS, "nonfinite"),
    ),
    bench=Case((8192, 768, 0), "bfloat16"),
    bench_cpu=Case((64, 64, 500), "bfloat16"),
    cost=backward_cost,
    pytorch=backward_by_pytorch,
    libraries=(COMPILE,),
)


def wrong_to_add_up(case, draw):
    upstream, tokens, words = to_add_up(case, draw)
    mistake_some(tokens, words)
    return upstream, tokens, words


wrong_tokens_backward = replace(
    backward,
    name="embedding, backward, of tokens that name no word",
    inputs=wrong_to_add_up,
    rungs=tuple(replace(rung, target=None) for rung in backward.rungs),
    cases=grid([(300, 24, 9)], FLOATS),
    timed=False,
)
