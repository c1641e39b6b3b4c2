"""Day 100: text from a GPT-2, end to end: prefill, decode, streaming."""

from common.day import Case, Exercise, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Final project: text from a GPT-2"
TEACHES = "Prefill, decode and draws without a sort become a program that streams text"
TOPICS = ("inference", "GPT-2", "prefill", "decode", "sampling", "top-k", "top-p", "Gumbel", "text")
SOURCE = "final_project.cu"
EXTRA_SOURCES = ("prefill.cu", "generate.py", "model.py", "proof.py", "weights.py")
INTRODUCES = ("prefill", "Gumbel-max trick")
EQUIVALENT = {  # mutants that compute the same, and why
    "prefill.cu: heads: 64-bit index in 32 bits: `int64_t which` -> `int which`": (
        "it is at most 2, and H has 64 bits"
    ),
    "prefill.cu: layers: rounded down: `ceil_div<int64_t>(n, 2 * ROWS)` -> `((n) / (2 * ROWS))`": (
        "a product by cuBLAS or by our own kernel computes the same"
    ),
    "prefill.cu: layers: rounded down: `ceil_div<int64_t>(cols, NARROW * PART)` -> "
    "`((cols) / (NARROW * PART))`": ("a product by cuBLAS or by our own kernel computes the same"),
    "prefill.cu: layers: constant off by one: `4 * n` -> `5 * n`": (
        "blocks behind the last element return at once"
    ),
    "sampling.cuh: Sampler::next: 64-bit index in 32 bits: `int64_t next` -> `int next`": (
        "it is the number of a word, of which there are at most 2^20"
    ),
    "sampling.cuh: Sampler::block_sums: constant off by one: `32 == 0` -> `32 == 1`": (
        "warp_sum leaves the sum in all lanes, so any of them may write it"
    ),
}

EXERCISE = Exercise(
    function="is_kept",
    task=(
        "A candidate has `count` words with larger logits, which have the mass `mass`; all words "
        "have `total`. Return whether both top-k and top-p keep it. top_k 0 and top_p 1 keep all "
        "words."
    ),
    hints=(
        "Number the words by their logits, from 0 on. Which numbers does top-k keep?",
        "top-p keeps the shortest prefix that has at least the share top_p. A word is in it if the "
        "words before it do not have that share yet.",
        "count < s.top_k and mass < s.top_p * total, each unless it is switched off.",
    ),
)

PRODUCTS = ("linear",)
SUMS = Tolerance(
    ulps=8, factor=16, why="a chain of layers, each of which adds hundreds of products in its order"
)
ROUNDED = Tolerance(
    ulps=8, factor=16, why="activations are rounded to bf16 between operations, in PyTorch's too"
)

# (layers, heads, channels, words, positions, position, steps, way)
DECODED = [(1, 1, 16, 37, 9, 4, 2, 4)]
DECODED += [(1, 2, 16, 131, 20, 14, 3, way) for way in range(6)]
DECODED += [(1, 2, 16, 97, 70, 62, 3, 4), (0, 2, 16, 70, 9, 1, 3, 4), (1, 1, 8, 1, 5, 2, 2, 2)]
DECODED += [(1, 2, 16, 900, 9, 0, 3, 2), (0, 1, 16, 37, 9, 4, 1, 7)]
# (layers, heads, channels, words, positions, tokens of the prompt)
PROMPTS = [(1, 1, 64, 29, 10, 5), (1, 1, 64, 97, 9, 1), (2, 1, 64, 70, 20, 9)]
PROMPTS += [(0, 1, 64, 70, 4, 3)]
LONG = [(1, 1, 64, 5, 7, 2), (1, 2, 128, 37, 140, 133), (2, 1, 128, 19, 70, 67)]
LONG += [(0, 7, 448, 5, 4, 2)]  # more channels than threads per block
GENERATED = [(1, 1, 64, 13, 5, 3, 2, 0), (2, 2, 128, 37, 9, 5, 3, 0), (1, 1, 64, 37, 6, 1, 4, 0)]
GPT2 = (12, 12, 768, 50257, 1024)

PROBLEMS = (
    Problem(
        name="prefill",
        inputs=model.prompt_inputs,
        reference=model.prefill,
        pytorch=model.prefill_by_pytorch,
        libraries=(Library("compile", model.prefill_compiled),),
        rungs=(
            Rung("prefill_v1_tokens", "token by token through the decoder"),
            Rung("prefill_v2_separate", "all at once, cuBLAS and passes", calls=PRODUCTS),
            Rung("prefill_v3_epilogues", "passes in the products' epilogues", calls=PRODUCTS),
            Rung(
                "prefill_v4_by_size",
                "so where tiles fill the card",
                calls=PRODUCTS,
                target=Target(1.0, "pytorch"),
            ),
        ),
        cases=(
            *(Case(shape, "bfloat16") for shape in PROMPTS),
            Case((1, 1, 64, 20, 9, 5), "bfloat16", "offset"),
        ),
        refused=(Case((1, 1, 64, 20, 9, 10), "bfloat16"), Case((1, 1, 64, 20, 9, 0), "bfloat16")),
        bench=Case((*GPT2, 512), "bfloat16"),
        bench_cpu=Case((1, 1, 64, 300, 64, 32), "bfloat16"),
        cost=model.prefill_cost,
        tolerance=ROUNDED,
    ),
    # Without v1, which takes long on the CPU.
    Problem(
        name="longer prompts",
        inputs=model.prompt_inputs,
        reference=model.prefill,
        pytorch=model.prefill_by_pytorch,
        libraries=(Library("compile", model.prefill_compiled),),
        rungs=(
            Rung("prefill_v2_separate", "all at once, cuBLAS and passes", calls=PRODUCTS),
            Rung("prefill_v3_epilogues", "passes in the products' epilogues", calls=PRODUCTS),
            Rung("prefill_v4_by_size", "so where tiles fill the card", calls=PRODUCTS),
        ),
        cases=tuple(Case(shape, "bfloat16") for shape in LONG),
        bench=Case((*GPT2, 1024), "bfloat16"),
        bench_cpu=Case((1, 1, 64, 300, 64, 32), "bfloat16"),
        cost=model.prefill_cost,
        tolerance=ROUNDED,
    ),
    Problem(
        name="generate",
        inputs=model.generate_inputs,
        reference=model.generate,
        pytorch=model.generate_by_pytorch,
        libraries=(Library("compile", model.generate_compiled),),
        rungs=(
            Rung("generate_v1_tokens", "all token by token"),
            Rung(
                "generate_v2_at_once",
                "prompt at once, then one launch",
                calls=PRODUCTS,
                target=Target(1.5, "compile"),
            ),
        ),
        cases=tuple(Case(shape, "bfloat16") for shape in GENERATED),
        refused=(Case((1, 1, 64, 20, 9, 7, 4, 0), "bfloat16"),),
        bench=Case((*GPT2, 512, 64, 0), "bfloat16"),
        bench_cpu=Case((1, 1, 64, 300, 64, 16, 4, 0), "bfloat16"),
        cost=model.generate_cost,
        tolerance=ROUNDED,
    ),
    Problem(
        name="decode",
        inputs=model.decode_inputs,
        reference=model.decode,
        pytorch=model.decode_by_pytorch,
        libraries=(Library("compile", model.decode_compiled),),
        rungs=(
            Rung("decode_v1_launches", "a launch per token, one block draws"),
            Rung(
                "decode_v2_inside",
                "all blocks draw",
                target=(Target(1.5, "compile"), Target(0.7, "copy")),
            ),
        ),
        cases=(
            *(Case(shape, "bfloat16") for shape in DECODED),
            Case((1, 2, 16, 20, 5, 1, 2, 4), "bfloat16", "offset"),
            # Of two equal logits, the first has exactly the share top_p.
            Case((0, 1, 8, 2, 9, 1, 6, 3), "bfloat16", "constant"),
        ),
        refused=(
            Case((1, 2, 32, 20, 8, 6, 3, 2), "bfloat16"),
            Case((1, 2, 32, 20, 8, 5, 3, 6), "bfloat16"),
        ),
        bench=Case((*GPT2, 512, 4, 0), "bfloat16"),
        bench_cpu=Case((2, 4, 64, 300, 64, 32, 2, 0), "bfloat16"),
        cost=model.decode_cost,
        tolerance=SUMS,
    ),
)
