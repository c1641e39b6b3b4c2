"""What day 84 proves of its operators, of wrong ones, and of what a gradient penalty costs."""

import re
from functools import partial

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.bench.showing import seconds_in_turn
from common.day import peak_memory, print_table

from .autograd import RUNGS, double_backward_formula, forward_formula, normalised, rms_normalised
from .penalty import explicit_loss, explicitly, functional, penalised, penalised_by_compile
from .wrong import EPS, UNSAID, said, wrong_versions

STEP = (32768, 32, 2048)  # of the training step on a GPU: B, K, D


def drawn(device, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(84)
    return [torch.randn(s, generator=generator, dtype=dtype).to(device) for s in shapes]


def print_checks(operators, device):
    """Raises what a check raises that an operator does not pass."""
    rows = []
    for names, order in (
        ([f"unit_rows_{v}" for v in RUNGS], 1),
        (["unit_rows_backward", "unit_rows_backward_twice"], 2),
        (["unit_rows_double_backward"], 3),
    ):
        for name in names:
            op = getattr(operators, name)
            exact = drawn(device, *[(3, 5)] * order, dtype=torch.float64)
            row = [name]
            if order < 3:  # check_batched_grad: the backward under vmap, too
                arguments = *(t.requires_grad_() for t in exact), EPS
                gradcheck(op, arguments, check_batched_grad=True)
                row.append("passes")
            if order < 2:
                gradgradcheck(op, arguments, check_batched_grad=True)
                row.append("passes")
            leaves = (t.detach().float().requires_grad_(order < 3) for t in exact)
            results = opcheck(op.default, (*leaves, EPS))
            passed = sum(result == "SUCCESS" for result in results.values())
            row += [""] * (3 - len(row)) + [f"{passed} of {len(results)}"]
            rows.append(row)
    print_table(["operator", "gradcheck", "gradgradcheck", "opcheck"], rows)


def require_close(found, expected, name):
    """Two formulas in fp32: their difference is small, beside the norm of each output."""
    for a, b in zip(found, expected, strict=True):
        if not float((a - b).norm()) <= 1e-3 * float(b.norm()):
            raise RuntimeError(f"{name}: off by {float((a - b).norm() / b.norm()):.1%}")


def print_transforms(operators, device):
    """vmap, autocast and torch.compile. Raises where one gives something else, or nothing."""
    op = operators.unit_rows_v3_twice
    (x,) = drawn(device, (4, 3, 8))
    batch = torch.vmap(lambda rows: op(rows, EPS), in_dims=1, out_dims=1)(x)
    torch.testing.assert_close(batch, op(x, EPS), rtol=0, atol=0)
    with torch.autocast(device.type, torch.bfloat16):
        dtype = op(x.bfloat16(), EPS).dtype
    print(f"vmap: equal bits; under autocast, bf16 gives {dtype}")

    # aot_eager traces as inductor does, and generates no code.
    compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
    arguments = *drawn(device, (6, 4), (4, 9), (9,)), EPS
    expected = penalised(forward_formula, *arguments)
    require_close(explicitly(compiled(explicit_loss), *arguments), expected, "explicit_loss")
    require_close(functional(*arguments), expected, "functional")
    print("torch.compile of the loss that calls the backward operator: one graph, equal gradients")
    once = compiled(lambda x, eps: op(x, eps) * 1)
    refusal, phrase = said(lambda: penalised(once, *arguments)), "support double backward"
    if phrase not in refusal:
        raise RuntimeError(f"a compiled function was differentiated twice: {refusal}")
    print(f"a compiled function, differentiated twice: does not {phrase}")
    print_constant(operators, device)


def print_constant(operators, device):
    """needs_input_grad: where x is constant, its second gradient is not computed."""
    x, g, h = drawn(device, (3, 8), (3, 8), (3, 8))
    g.requires_grad_()
    gx = operators.unit_rows_backward_twice(g, x, EPS)
    with Counted() as mode:
        (gg,) = torch.autograd.grad(gx, g, h)
    torch.testing.assert_close(gg, double_backward_formula(h, g, x, EPS)[0])
    if mode.names != ["day84.unit_rows_backward_twice.default"]:
        raise RuntimeError(f"for a constant x, the double backward called {mode.names}")
    print("x constant: the double backward is the backward kernel, two rows read instead of three")


class Counted(TorchDispatchMode):
    """Counts operators without views, bytes of their arguments and results, and those that autograd
    keeps for later."""

    def __init__(self):
        super().__init__()
        self.names, self.moved, self.kept = [], 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.names.append(str(func))
            tensors = {t.data_ptr(): t for t in tree_leaves((args, result)) if torch.is_tensor(t)}
            self.moved += sum(t.untyped_storage().nbytes() for t in tensors.values())
        return result

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor


def counted(normalise, device):
    """Of normalise, its gradient and the gradient of that: operators, and in tensors of x's size
    what they read and write, and what is kept for the last beside x and the upstream gradient."""
    x, g = drawn(device, (64, 512), (64, 512))
    x.requires_grad_(), g.requires_grad_()
    with Counted() as mode:
        with torch.autograd.graph.saved_tensors_hooks(mode.pack, lambda tensor: tensor):
            (gx,) = torch.autograd.grad(normalise(x, EPS), x, g, create_graph=True)
        kept = {**mode.kept, x.data_ptr(): 0, g.data_ptr(): 0}
        torch.autograd.grad(gx, (x, g), gx.detach())
    size = x.nbytes
    return len(mode.names), f"{mode.moved / size:.1f}", f"{sum(kept.values()) / size:.1f}"


def print_costs(operators, device):
    """Counts on any device; on a GPU, also time and peak memory of a step with penalty."""
    ways = {"F.normalize": normalised, "F.rms_norm": rms_normalised}
    ways |= {f"v{i + 1}": getattr(operators, f"unit_rows_{v}") for i, v in enumerate(RUNGS)}
    rows = {name: [name, *counted(way, device)] for name, way in ways.items()}
    header = ["all three passes", "operators", "moved", "kept"]
    if device.type == "cuda":
        B, K, D = STEP
        arguments = *drawn(device, (B, K), (K, D), (D,)), EPS
        steps = {name: partial(penalised, way, *arguments) for name, way in ways.items()}
        graph = torch.compile(explicit_loss, fullgraph=True, dynamic=False)
        steps["v3, in one graph"] = partial(explicitly, graph, *arguments)
        steps["formulas, compiled"] = partial(penalised_by_compile, *arguments)
        expected = steps["v3"]()
        for name, step in steps.items():
            require_close(step(), expected, name)
        times = seconds_in_turn(steps)
        for name, step in steps.items():
            memory = peak_memory(step) / 2**30
            row = rows.setdefault(name, [name, "", "", ""])
            row += [f"{1e3 * times[name]:.2f} ms", f"{memory:.2f} GiB"]
        header += ["step", "peak memory"]
    print_table(header, list(rows.values()))


def print_wrong(device):
    """Raises where a wrong version is not found by what is to find it, or found by what is not."""
    rows = []
    for what, tried, call, phrase in wrong_versions(device):
        text = said(call)
        if phrase not in text:
            raise RuntimeError(f"{what or rows[-1][0]}, {tried}: expected “{phrase}”, got: {text}")
        found = re.search(r"off by \d+%", text)
        warned = "a warning, " if UNSAID in text else ""
        outcome = "passes" if phrase == "True" else warned + found[0] if found else phrase
        rows.append([what, tried, outcome])
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for what, tried, outcome in [["wrong", "tried", "outcome"], *rows]:
        print(f"{what:{widths[0]}}  {tried:{widths[1]}}  {outcome}")


def show(operators, device):
    print_checks(operators, device)
    print_transforms(operators, device)
    print_wrong(device)


def show_times(operators, device):
    print_costs(operators, device)
