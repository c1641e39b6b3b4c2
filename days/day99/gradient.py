"""The gradient of an embedding: cases, formula, costs, and the count of a warp's serial work."""

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

WORDS = 50257  # of GPT-2; what a 0 in a case's shape stands for
FREQUENT = 32  # rows: as in days/day82/word_rows.cuh
TEXT, EVEN, ONE, RUNS = range(4)  # how tokens are drawn, the last number of a case's shape


def words_of(case):
    return case.shape[2] or WORDS


def draw_tokens(case, draw):
    """n tokens. TEXT: word w is about as frequent as 1 / (w + 1) (Zipf's law), with tokens that
    name no word. EVEN: all words are equally frequent. ONE: all are the last word. RUNS: the words
    have 33, 32, 31, 1, 65, 64, 63 and again 33 rows, in an order that is drawn."""
    n, _, _, kind = case.shape
    words = words_of(case)
    tokens = draw(n, dtype="int64", low=0, high=max(words, 1))
    chance = draw(n, dtype="float32", values="uniform").double()
    if kind == TEXT:
        tokens.copy_(((words + 1) ** chance - 1).long().clamp_(max=max(words - 1, 0)))
    elif kind == ONE:
        tokens.fill_(words - 1)
    elif kind == RUNS:
        lengths = torch.tensor([33, 32, 31, 1, 65, 64, 63]).repeat(n // 289 + 1)
        runs = torch.arange(len(lengths)).repeat_interleave(lengths)[:n].to(tokens.device)
        tokens.copy_(runs[chance.argsort()] % words)
    return tokens


def inputs(case, draw):
    n, C, _, _ = case.shape
    return draw(n, C), draw_tokens(case, draw), words_of(case)


def inputs_ignored(case, draw):
    upstream, tokens, words = inputs(case, draw)
    tokens[1::4] = words
    tokens[2::7] = -1
    tokens[3::9] = 2**40
    return upstream, tokens, words


def embedding_backward(upstream, tokens, words):
    """The sum of the rows of each word, rounded once; tokens that name no word are left out."""
    if upstream.dim() != 2 or tokens.shape != upstream.shape[:1]:
        raise ValueError(f"tokens: {len(upstream)} expected, got {tuple(tokens.shape)}")
    valid = (tokens >= 0) & (tokens < words)
    wide = torch.promote_types(upstream.dtype, torch.float32)
    sums = upstream.new_zeros(words, upstream.shape[1], dtype=wide)
    return sums.index_add_(0, tokens[valid], upstream[valid].to(wide)).to(upstream.dtype)


def by_pytorch(upstream, tokens, words):
    """What F.embedding's backward pass calls."""
    return torch.ops.aten.embedding_dense_backward(upstream, tokens, words, -1, False)


def cost(case):
    n, C, _, _ = case.shape
    return Cost(bytes=(n + words_of(case)) * C * case.itemsize, flops=n * C)


def problem(name, kind, cases, *, target=None, timed=True, drawn=inputs):
    return Problem(
        name=name,
        inputs=drawn,
        reference=embedding_backward,
        rungs=(
            Rung("embedding_grad_v1_frequent_words", "day 82: a block takes its words in turn"),
            Rung("embedding_grad_v2_parts", "a warp per piece of 32 rows, then the parts"),
            Rung("embedding_grad_v3_zeros_beside", "zeros beside the sort", target=target),
        ),
        cases=cases,
        timed=timed,
        bench=Case((8192, 768, 0, kind), "bfloat16"),
        bench_cpu=Case((64, 64, 500, kind), "bfloat16"),
        cost=cost,
        pytorch=by_pytorch,
        libraries=(COMPILE,),
        several_streams=True,
    )


problems = (
    problem(
        "tokens of a text",
        TEXT,
        (
            # Words without a token, of few, of many; around one piece, and a tail of columns.
            *grid([(1, 1, 1, TEXT), (31, 40, 2, TEXT), (300, 24, 40, TEXT)], FLOATS),
            *grid([(600, 264, 2, TEXT), (70, 130, 3, TEXT), (97, 9, 2, TEXT)], FLOATS),
            *grid([(0, 8, 4, TEXT), (5, 0, 4, TEXT), (0, 0, 3, TEXT)], ["float32", "bfloat16"]),
            *grid([(50, 24, 9, TEXT), (200, 24, 3, TEXT)], FLOATS, "nonfinite"),
            *grid([(1000, 8, 200, TEXT)], ["float32"]),  # more than one tile of the sort
        ),
        target=Target(2.0, "pytorch"),
    ),
    problem(
        "all words equally frequent",
        EVEN,
        grid([(33, 24, 50, EVEN), (400, 16, 9, EVEN), (64, 7, 1000, EVEN)], FLOATS),
    ),
    problem(
        "one word",
        ONE,
        grid([(n, 24, 3, ONE) for n in (1, 31, 32, 33, 64, 65, 700)] + [(300, 7, 1, ONE)], FLOATS),
    ),
    problem(
        "words of 31 to 65 rows",
        RUNS,
        grid([(289, 24, 7, RUNS), (700, 8, 14, RUNS), (578, 5, 40, RUNS)], FLOATS),
        timed=False,
    ),
    problem(
        "tokens that name no word",
        TEXT,
        grid([(300, 24, 9, TEXT), (500, 16, 2, TEXT), (200, 7, 4, RUNS)], FLOATS),
        timed=False,
        drawn=inputs_ignored,
    ),
)
