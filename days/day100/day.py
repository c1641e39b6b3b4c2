"""Day 100: text from a GPT-2, end to end: prefill, decode, streaming."""

if __name__ == "__main__":  # python days/day100/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day100

from common.day import Case, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Final project: text from a GPT-2"
TEACHES = "Prefill, decode and draws without a sort become a program that streams text"
TOPICS = ("inference", "GPT-2", "prefill", "decode", "sampling", "top-k", "top-p", "Gumbel", "text")
SOURCE = "final_project.cu"
EXTRA_SOURCES = ("prefill.cu", "folder.py", "generate.py", "model.py", "proof.py", "weights.py")
INTRODUCES = ("prefill", "Gumbel-max trick")

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
                target=Target(1.2, "compile"),
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
