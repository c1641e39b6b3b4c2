"""Day 12: one operator, three ways to build it."""

if __name__ == "__main__":  # python days/day12/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day12


import torch

from common.day import COMPILE, Case, Cost, Problem, grid

from .builds import OPERATORS, cmake, jit, rung, setup_py

TITLE = "One operator, three ways to build it"
TEACHES = "JIT, setup.py and CMake builds of one operator; opcheck, autograd, torch.compile"
TOPICS = ("build", "setuptools", "CMake", "JIT", "custom operator", "opcheck", "torch.compile")
SOURCE = "fused_gelu.cu"
EXTRA_SOURCES = ("binding.cpp", "setup.py", "CMakeLists.txt")
INTRODUCES = ("opcheck", "meta function", "graph break")


def inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(cols)


def reference(x, bias):
    if bias.shape != x.shape[1:]:
        raise ValueError(f"bias: {tuple(bias.shape)} does not fit x: {tuple(x.shape)}")
    return torch.nn.functional.gelu(x + bias)


def gradient_inputs(case, draw):
    return draw(*case.shape, values="normal"), *inputs(case, draw)


def gradient(g, x, bias):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(reference(leaf, bias), leaf, g)[0]


def cost(case):
    """Forward: x, y, bias. Backward: g, x, gx, bias and its gradient."""
    rows, cols = case.shape
    return Cost(bytes=(5 * rows * cols + 3 * cols) * case.itemsize, flops=45 * rows * cols)


def show(operators, device):
    """Runs PyTorch's opcheck on each operator, then torch.compile, forward and gradients."""
    x = torch.randn(33, 65, device=device, requires_grad=True)
    bias = torch.randn(65, device=device, requires_grad=True)
    # inductor generates code for real GPUs only; on the CPU backend, tracing alone is tested.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    for name, loaded in OPERATORS.items():
        results = torch.library.opcheck(loaded.fused_gelu.default, (x, bias))
        passed = sum(result == "SUCCESS" for result in results.values())

        def chain(x, bias, op=loaded.fused_gelu):
            return (op(x * 2, bias) + 1).square().sum()

        # fullgraph: a graph break is an error.
        compiled = torch.compile(chain, fullgraph=True, backend=backend)
        actual = torch.autograd.grad(compiled(x, bias), (x, bias))
        expected = torch.autograd.grad(chain(x, bias), (x, bias))
        torch.testing.assert_close(actual, expected)
        print(f"{name}: opcheck {passed} of {len(results)} passed; torch.compile ({backend}) with")
        print("  no graph break, gradients close to those of eager mode")


PROBLEMS = (
    Problem(
        name="fused_gelu",
        inputs=inputs,
        reference=reference,
        pytorch=reference,
        libraries=(COMPILE,),
        rungs=(
            rung("day12_jit", "torch.utils.cpp_extension.load", jit),
            rung("day12_setup", "setup.py, run by pip", setup_py),
            rung("day12_cmake", "CMakeLists.txt", cmake),
        ),
        cases=(
            *grid([(1, 1), (3, 255), (5, 256), (4, 257), (33, 1025)], ["float32", "float16"]),
            *grid([(7, 33), (0, 8), (4, 0)], ["float32", "bfloat16"]),
            *grid([(9, 40)], ["float32", "bfloat16"], values="extreme"),
            *grid([(9, 40)], ["float32", "bfloat16"], values="large"),
            *grid([(9, 40)], ["float32", "bfloat16"], values="nonfinite"),
        ),
        bench=Case((65536, 4096)),
        bench_cpu=Case((256, 1024)),
        cost=cost,
        gradients=True,
    ),
    Problem(  # by itself, so that large inputs are tried
        name="fused_gelu_backward",
        inputs=gradient_inputs,
        reference=gradient,
        rungs=(rung("day12_jit", "the gradient of x", jit, "fused_gelu_backward"),),
        cases=grid([(7, 33), (33, 1025), (0, 8), (4, 0)], ["float32", "bfloat16"]),
        timed=False,
    ),
)
