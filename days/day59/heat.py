"""Heat in a ring in PyTorch: the reference, the baselines, and a graph whose tensor is freed."""

import functools

import torch

from common.day import Skip


def step(x, k):
    return (1 - 2 * k) * x + k * (torch.roll(x, 1) + torch.roll(x, -1))


def solve(x, steps, k):
    y = x.clone()
    for _ in range(steps):
        y = step(y, k)
    return y


def replayed(x, later, k):
    """A graph that was captured with x reads what is at its address now."""
    return step(later, k)


def solve_both(x, later, steps, k):
    return solve(x, steps, k), solve(later, steps, k)


def solve_rings(x, sizes, steps, k):
    return torch.cat([solve(ring, steps, k) for ring in x.split(list(sizes))])


@functools.cache
def _graph(sizes, steps, k):
    """All steps, each compiled to one kernel, as a graph of PyTorch's: (graph, input, result). The
    rings are captured in streams of their own, so that they are branches of the graph."""
    if not torch.cuda.is_available():
        raise Skip("a CUDA graph needs a GPU")
    compiled = torch.compile(step, dynamic=True)
    x = torch.zeros(sum(sizes), device="cuda")
    rings = x.split(sizes)
    for ring in rings:
        compiled(ring, k)
    torch.cuda.synchronize()
    graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in sizes]
    with torch.cuda.graph(graph):
        results = []
        for ring, stream in zip(rings, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(steps):
                    ring = compiled(ring, k)
            results.append(ring)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        result = torch.cat(results)
    return graph, x, result


def graphed_rings(x, sizes, steps, k):
    graph, source, result = _graph(tuple(sizes), steps, k)
    source.copy_(x)
    graph.replay()
    return result.clone()


def graphed(x, steps, k):
    return graphed_rings(x, (x.numel(),), steps, k)


def show_freed_tensor():
    """Captures doubled = 2 x, frees x, and replays: what a new tensor holds there is doubled."""
    n = 1 << 22
    x = torch.full((n,), 1.0, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = 2 * x
    address = x.data_ptr()
    graph.replay()
    print("x = 1 is captured and doubled:", doubled[0].item())
    del x
    new = torch.full((n,), 21.0, device="cuda")
    graph.replay()
    where = "the address of x" if new.data_ptr() == address else "another address"
    print(f"x is freed, a new tensor of 21 has {where}; replayed:", doubled[0].item())
