"""Day 26: Attention forward on tensor cores."""

from common.day import Case, Cost, Problem, Rung, grid

TITLE = "Attention forward on tensor cores"
TEACHES = "What this day teaches, in one line"
TOPICS = ("first topic",)
SOURCE = "attention_forward_on_tensor_cores.cu"

FLOATS = ["float32", "float16", "bfloat16"]


def inputs(case, draw):
    return (draw(*case.shape),)


def reference(x):
    return x * 2


def cost(case):
    (n,) = case.shape
    return Cost(bytes=2 * n * case.itemsize, flops=n)  # read x, write y


PROBLEMS = (
    Problem(
        name="attention_forward_on_tensor_cores",
        inputs=inputs,
        reference=reference,
        pytorch=reference,
        rungs=(Rung("attention_forward_on_tensor_cores_v1_thread_per_element", "one thread per element"),),
        cases=(*grid([(0,), (1,), (1023,), (1024,), (1025,)], FLOATS),),
        bench=Case((2**28,)),
        bench_cpu=Case((2**16,)),
        cost=cost,
    ),
)
