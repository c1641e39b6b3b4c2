"""How the day's rungs are loaded, and what `show` proves: random graphs, counts, refusals."""

import random

import torch

from common.bench.traces import launches_of
from common.day import Case, print_table

from . import expressions as e
from . import lazy
from .compile import Compiler, Fused, Options, Program, realize, realize_all
from .schedule import FUSIONS, ordered

builders = []  # the last that a rung was loaded with


def fused(expression, options, inputs, cases, bench):
    """A Rung's `load`: the expression, with the kernels of all cases built beforehand. bench: what
    is timed on "cuda" and "cpu"."""

    def check(*args):
        """Promotion and broadcasting would be right, too, but each combination is a build."""
        if args[0].dim() != 2:
            raise ValueError(f"{made.names[0]}: expected 2 dimensions, got {args[0].dim()}")
        expected = inputs(Case(tuple(args[0].shape)), e.like("float32"))
        for name, arg, like in zip(made.names, args, expected, strict=True):
            if arg.dtype != args[0].dtype:
                raise TypeError(f"{name}: expected {args[0].dtype}, got {arg.dtype}")
            if arg.shape != like.shape:
                raise ValueError(f"{name}: expected {tuple(like.shape)}, got {tuple(arg.shape)}")

    made = Fused(expression, None, options, check)

    def load(builder):
        builders[:] = [builder]
        made.compiler = Compiler(builder)
        every = (*cases, bench[builder.device])
        made.prepare([inputs(case, e.like(case.dtype)) for case in every])
        return made

    return load


def launched(expression, case):
    """A Rung's `load`: the operator with the expression's kernel for a tensor like the case's; or
    with none, where its argument `kernel` is False."""

    def load(builder):
        compiler = Compiler(builder)
        x = e.like(case.dtype)(*case.shape)
        printed = Fused(expression, compiler).trace((x,), aligned=False)[0].launches[0].printed
        compiler.build([printed])
        address = compiler.functions[printed.function]

        def launch(inputs, outputs, kernel):
            for name, given in (("inputs", inputs), ("outputs", outputs)):
                if (given.shape, given.dtype) != (x.shape, x.dtype):
                    raise ValueError(f"{name}: expected {x.dtype} {tuple(x.shape)}")
            kernel = address if kernel else 0
            compiler.launch([inputs], [outputs], kernel, printed.rows, printed.cols)

        launch.writes = ("outputs",)  # type: ignore[attr-defined]  # read by the check
        return launch

    return load


# ---------------------------------------------------------------- random graphs

ROWS, COLS = 6, 40
SHAPES = [(ROWS, COLS), (ROWS, COLS), (ROWS, 1), (COLS,), (1, COLS), ()]
DTYPES = [torch.float32, torch.float32, torch.bfloat16, torch.float16]
UNARY = ("tanh", "sigmoid", "erf", "relu", "square", "neg", "exp", "sqrt", "log", "rsqrt", "abs")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "where")
TOLERANCE = 6  # times PyTorch's error in the same dtypes, and as many units in the last place


class Recipe:
    """A random expression as steps that tensors of PyTorch and lazy ones can follow."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.leaves = [
            (draw.choice(SHAPES), draw.choice(DTYPES)) for _ in range(draw.randint(2, 4))
        ]
        self.leaves[0] = (draw.choice([(ROWS, COLS), (2, ROWS, COLS), (ROWS, COLS + 1)]), DTYPES[0])
        if self.leaves[0][0][-1] != COLS:
            self.leaves[1:] = [
                ((*s[:-1], COLS + 1) if s[-1:] == (COLS,) else s, d) for s, d in self.leaves[1:]
            ]
        self.steps = []
        count = len(self.leaves)
        for i in range(draw.randint(5, 12)):
            kind = draw.choice(("unary", "binary", "binary", "reduce"))
            op = draw.choice({"unary": UNARY, "binary": BINARY, "reduce": lazy.REDUCTIONS}[kind])
            recent = [draw.randrange(max(0, count + i - 3), count + i) for _ in range(2)]
            recent[1] = draw.choice([recent[1], draw.randrange(count + i)])
            self.steps.append((op, recent[0], recent[1]))
        self.outputs = [count + len(self.steps) - 1, draw.randrange(count, count + len(self.steps))]

    def tensors(self, seed, device):
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.randn(shape, generator=generator).to(device, dtype)
            for shape, dtype in self.leaves
        ]

    def follow(self, leaves, to):
        """The outputs. to: the module of `where`, `maximum` and `minimum`."""
        values = list(leaves)
        for op, i, j in self.steps:
            a, b = values[i], values[j]
            if op in lazy.REDUCTIONS and a.shape and a.shape[-1] > 1:
                value = getattr(a, op)(-1, keepdim=True)
            elif op in ("log", "sqrt", "rsqrt"):
                value = getattr(a.abs() + 0.5, op)()
            elif op == "exp":
                value = a.tanh().exp()
            elif op == "div":
                value = a / (b.abs() + 0.5)
            elif op == "where":
                value = to.where(leaves[0] > 0.1, a, b)  # of a leaf: rounding flips no comparison
            elif op in ("maximum", "minimum"):
                value = getattr(to, op)(a, b)
            elif op in ("add", "sub", "mul"):
                value = {"add": a + b, "sub": a - b, "mul": a.tanh() * b}[op]
            else:
                value = (-a if op == "neg" else getattr(a, op)()) if op in UNARY else a * 0.5
            values.append(value)
        return [values[i] for i in self.outputs]


def largest_error(results, truth):
    return max(
        float(((a.double() - t).abs() / t.abs().max().clamp(min=1e-30)).max())
        for a, t in zip(results, truth, strict=True)
    )


def check_random(compiler, device, count):
    """Raises RuntimeError where a random graph is further from float64 than PyTorch is, by far."""
    rows = []
    for fusion in FUSIONS:
        recipes = [Recipe(seed) for seed in range(count)]
        graphs, truths, theirs = [], [], []
        for seed, recipe in enumerate(recipes):
            leaves = recipe.tensors(seed, device)
            graphs.append(
                recipe.follow([lazy.leaf(t, f"x{i}") for i, t in enumerate(leaves)], lazy)
            )
            truths.append(recipe.follow([t.double() for t in leaves], torch))
            theirs.append(recipe.follow(leaves, torch))
        for seed, (ours, torchs, truth) in enumerate(
            zip(realize_all(compiler, graphs, Options(fusion)), theirs, truths, strict=True)
        ):
            for a, b in zip(ours, torchs, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype:
                    raise RuntimeError(
                        f"graph {seed}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
                    )
            least = max(torch.finfo(t.dtype).eps for t in torchs)
            allowed = TOLERANCE * (largest_error(torchs, truth) + least)
            if not largest_error(ours, truth) <= allowed:
                raise RuntimeError(
                    f"graph {seed}, fusion {fusion}: off by {largest_error(ours, truth):.3g}, "
                    f"{allowed:.3g} is allowed"
                )
        programs = [Program(_leaves(g), g, Options(fusion), True) for g in graphs]
        rows.append([fusion, sum(len(p.launches) for p in programs)])
    print_table([f"{count} random graphs, right with fusion", "launches"], rows)


def _leaves(outputs):
    return [node for node in ordered(outputs) if node.op == "leaf"]


# ---------------------------------------------------------------- refusals


def must_raise(kind, words, call):
    try:
        call()
    except kind as error:
        if all(word in str(error) for word in words):
            return
        raise RuntimeError(f"the message lacks one of {words}: {error}") from error
    raise RuntimeError(f"nothing was raised, an error with {words} was expected")


def check_refusals(compiler, device):
    x, y = torch.ones(4, 6, device=device), torch.ones(4, 5, device=device)
    a = lazy.leaf(x, "a")
    must_raise(RuntimeError, ("a (4, 6)", "b (4, 5)"), lambda: a + lazy.leaf(y, "b"))
    must_raise(TypeError, ("n:", "int64"), lambda: lazy.leaf(x.long(), "n"))
    must_raise(ValueError, ("t:", "contiguous"), lambda: lazy.leaf(x.T, "t"))
    must_raise(TypeError, ("mul", "Tensor"), lambda: a * x)
    must_raise(TypeError, ("truth value",), lambda: bool(a > 0))
    must_raise(
        (IndexError, RuntimeError),
        ("amax", "e (4, 0)"),
        lambda: lazy.leaf(x[:, :0].contiguous(), "e").amax(),
    )
    recorded = a.exp()
    x += 1
    must_raise(RuntimeError, ("a:", "in place"), lambda: realize(compiler, [recorded]))


# ---------------------------------------------------------------- what fusion saves


def print_counts(device):
    shape, rows = Case((16384, 4096), "bfloat16"), []
    for expression, inputs in (
        (e.chain, e.chain_inputs),
        (e.softmax, lambda case, draw: (draw(*case.shape),)),
        (e.layer_norm, e.norm_inputs),
    ):
        for fusion in FUSIONS:
            program, _ = Fused(expression, None, Options(fusion)).trace(
                inputs(shape, e.like(shape.dtype))
            )
            rows.append(
                [
                    expression.__name__,
                    fusion,
                    len(program.launches),
                    f"{program.bytes / 1e6:,.0f} MB",
                ]
            )
        if len(program.launches) != 1:
            raise RuntimeError(f"{expression.__name__}: {len(program.launches)} launches, not 1")
    print_table(["16384 × 4096 bf16", "fusion", "launches", "bytes"], rows)


def show(operators, device):
    """Prints the kernel of layer norm, counts launches and bytes, and proves random graphs. Raises
    RuntimeError where something is wrong."""
    compiler = Compiler(builders[0])
    case = Case((64, 4096), "bfloat16")
    norm, _ = Fused(e.layer_norm, compiler).trace(e.norm_inputs(case, e.like(case.dtype)))
    print(norm.launches[0].printed.struct)
    print_counts(device)
    check_refusals(compiler, device)
    check_random(compiler, device, 16)
    print(f"builds of these: {compiler.seconds:.1f} s, which the cache saves the next run")
    x = torch.randn(64, 4096, device=device)
    softmax = Fused(e.softmax, compiler)
    softmax(x)
    kernels = launches_of(lambda: softmax(x))
    if device.type == "cuda" and len(kernels) != 1:
        raise RuntimeError(f"softmax: {len(kernels)} launches on the GPU")
