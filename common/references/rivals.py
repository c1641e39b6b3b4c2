"""Call the libraries that --rivals times together with the rungs of several days.

Each is a Library, whose call takes the rungs' arguments and imports what it needs. Rivals of a
single day, in that day's own formats, stand in its folder. common/base/rivals.py names their
packages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.base.declaration import Library
from common.base.toolchain import detect
from common.build.library import build_source, use_compilers

LIGER_WAITS = "it reads the number of targets on the host"
KEPT = 64  # results of preparations: the timing of a short call uses up to 32 copies of its inputs


def _rival(
    name: str, not_captured: str = "", writes: tuple[int, ...] = ()
) -> Callable[[Callable[..., Any]], Library]:
    """Return a decorator that makes a Library of a function: see there."""
    return lambda call: Library(name, call, not_captured, writes)


@cache
def cub() -> Any:
    """Return the operators of cub_calls.cu, torch.ops.cub_calls, built if they are missing.

    Raise BuildError with the compiler's message.
    """
    source = Path(__file__).with_name("cub_calls.cu")
    torch.ops.load_library(str(build_source(source, detect("cuda"))))
    return torch.ops.cub_calls


@_rival("CUB")
def cub_sum(x: Tensor) -> Tensor:
    """Return the sum of x (n), fp32, fp64 or int32: of integers in int64."""
    result: Tensor = cub().sum(x)
    return result


@_rival("CUB")
def cub_scan(x: Tensor, exclusive: bool) -> Tensor:
    """Return the running sums of x (n), fp32."""
    result: Tensor = cub().scan(x, exclusive)
    return result


@_rival("CUB")
def cub_histogram(x: Tensor, bins: int) -> Tensor:
    """Return the counts (bins) of x (n), int32."""
    result: Tensor = cub().histogram(x, bins)
    return result


@_rival("CUB")
def cub_sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (n) sorted, and the indices in int32, which are written first: the stable radix sort
    moves 4 bytes of them per key, torch.sort 8."""
    order = torch.arange(len(x), dtype=torch.int32, device=x.device)
    keys, indices = cub().sort_pairs(x, order)
    return keys, indices


# ---------------------------------------------------------------- quack


@_rival("quack")
def quack_softmax(x: Tensor) -> Tensor:
    """Return the softmax of the rows of x (rows, cols)."""
    from quack.softmax import softmax_fwd

    result: Tensor = softmax_fwd(x)
    return result


@_rival("quack")
def quack_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the normalised rows of x (rows, cols), and their factors (rows) in fp32."""
    from quack.rmsnorm import rmsnorm_fwd

    y, _, rstd = rmsnorm_fwd(x, weight, eps=eps, store_rstd=True)
    return y, rstd


@_rival("quack")
def quack_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised rows of x (rows, cols), their means and factors (rows) in fp32. quack
    takes the parameters in fp32 alone: they are converted before the timing."""
    from quack.rmsnorm import layernorm_fwd

    y, rstd, mean = layernorm_fwd(x, _fp32(weight), _fp32(bias), eps, True, True)
    return y, mean, rstd


@_rival("quack")
def quack_layer_norm_backward(
    gy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of x (rows, cols), weight and bias (cols)."""
    from quack.rmsnorm import layernorm_bwd

    gradients: tuple[Tensor, ...] = layernorm_bwd(x, _fp32(weight), gy, rstd, mean)
    return gradients


@_rival("quack")
def quack_rms_norm_backward(
    gy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of x (rows, cols) and weight (cols)."""
    from quack.rmsnorm import rmsnorm_bwd

    gradients: tuple[Tensor, ...] = rmsnorm_bwd(x, weight, gy, rstd)[:2]
    return gradients


@lru_cache(maxsize=KEPT)
def _fp32(x: Tensor) -> Tensor:
    return x.float()


@_rival("quack")
def quack_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a (M, K) · b (K, N), by the tile that quack's autotuner finds fastest."""
    from quack.gemm_interface import gemm

    result: Tensor = gemm(a, b)
    return result


@_rival("quack")
def quack_matmul_nt(a: Tensor, b: Tensor) -> Tensor:
    """Return the same of b (N, K), transposed."""
    from quack.gemm_interface import gemm

    result: Tensor = gemm(a, b.t())
    return result


@_rival("quack")
def quack_cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, *_: Any
) -> tuple[Tensor, ...]:
    """Return the mean loss, and the gradient of logits (rows, classes)."""
    from quack.cross_entropy import cross_entropy

    return _with_gradient((logits,), lambda x: cross_entropy(x, target, ignore_index=ignore_index))


@_rival("Liger", LIGER_WAITS, writes=(0,))
def liger_cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, *_: Any
) -> tuple[Tensor, ...]:
    """Return the mean loss, and the gradient of logits (rows, classes), which replaces them."""
    from liger_kernel.transformers.functional import liger_cross_entropy as loss_of

    return _with_gradient((logits,), lambda x: loss_of(x, target, ignore_index=ignore_index))


@_rival("quack")
def quack_head(
    hidden: Tensor, weight: Tensor, target: Tensor, *_: Any, ignore_index: int = -100
) -> tuple[Tensor, ...]:
    """Return the mean loss, and the gradients of hidden (rows, C) and weight (words, C)."""
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return _with_gradient(
        (hidden, weight),
        lambda x, w: chunked_linear_cross_entropy(x, w, target, ignore_index=ignore_index),
    )


@_rival("Liger", LIGER_WAITS)
def liger_head(
    hidden: Tensor, weight: Tensor, target: Tensor, *_: Any, ignore_index: int = -100
) -> tuple[Tensor, ...]:
    """Return the mean loss, and the gradients of hidden (rows, C) and weight (words, C)."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as loss_of

    return _with_gradient(
        (hidden, weight), lambda x, w: loss_of(x, w, target, ignore_index=ignore_index)
    )


def _with_gradient(
    tensors: tuple[Tensor, ...], loss_of: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in tensors]
        loss = loss_of(*leaves)
    return loss, *torch.autograd.grad(loss, leaves)


# ---------------------------------------------------------------- attention


def _rows_first(x: Tensor) -> Tensor:
    """Return (B, S, H, D) of (B, H, S, D) or the reverse, as FlashAttention orders them."""
    return x.transpose(1, 2)


@_rival("FlashAttention-4")
def fa4(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Return o (B, H, S, D) and the log-sum-exp (B, H, S) in fp32, of q, k, v (B, H, S, D)."""
    from flash_attn.cute import flash_attn_func

    o, lse = flash_attn_func(*map(_rows_first, (q, k, v)), causal=causal, return_lse=True)
    return _rows_first(o), lse


@_rival("FlashAttention-4")
def fa4_window(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """Return the same with a causal mask: a row uses the last `window` keys, all of them if 0."""
    from flash_attn.cute import flash_attn_func

    left = window - 1 if window else None
    tensors = map(_rows_first, (q, k, v))
    o, lse = flash_attn_func(*tensors, causal=True, window_size=(left, 0), return_lse=True)
    return _rows_first(o), lse


@_rival("FlashAttention-4")
def fa4_step(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Return o (B, H, S, D), with its gradient."""
    from flash_attn.cute import flash_attn_func

    return _rows_first(flash_attn_func(*map(_rows_first, (q, k, v)), causal=causal)[0])


@_rival("FlashAttention-4")
def fa4_backward(
    go: Tensor,
    glse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v (B, H, S, D); glse is taken for 0."""
    from flash_attn.cute.interface import _flash_attn_bwd

    tensors = map(_rows_first, (q, k, v, o, go))
    gradients = _flash_attn_bwd(*tensors, lse, causal=causal)
    return tuple(map(_rows_first, gradients[:3]))


@cache
def _cudnn_handle() -> Any:
    import cudnn

    return cudnn.create_handle()


Shape = tuple[int, ...]


@cache
def _cudnn_graph(
    shapes: tuple[tuple[Shape, Shape], ...], dtype: torch.dtype, causal: bool, backward: bool
) -> tuple[Any, list[Any], list[Any]]:
    """Return a built graph with its inputs and outputs. shapes: sizes and strides of the inputs,
    q, k, v and, for the backward pass, o and its gradient."""
    import cudnn

    graph = cudnn.pygraph(
        io_data_type=getattr(cudnn.data_type, "HALF" if dtype == torch.float16 else "BFLOAT16"),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=_cudnn_handle(),
    )
    inputs = [graph.tensor(dim=list(dim), stride=list(stride)) for dim, stride in shapes]
    size, stride = shapes[0]
    options = {"attn_scale": size[-1] ** -0.5, "use_causal_mask": causal}
    rows, strides = [*size[:3], 1], [size[1] * size[2], size[2], 1, 1]
    if backward:
        stats = graph.tensor(dim=rows, stride=strides, data_type=cudnn.data_type.FLOAT)
        inputs.append(stats)
        q, k, v, o, go = inputs[:5]
        outputs = graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=go, stats=stats, **options)[:3]
        for output, (dim, step) in zip(outputs, shapes[:3], strict=True):
            output.set_output(True).set_dim(list(dim)).set_stride(list(step))
    else:
        q, k, v = inputs
        outputs = graph.sdpa(q=q, k=k, v=v, generate_stats=True, **options)
        outputs[0].set_output(True).set_dim(list(size)).set_stride(list(stride))
        outputs[1].set_output(True).set_data_type(cudnn.data_type.FLOAT)
        outputs[1].set_dim(rows).set_stride(strides)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph, inputs, outputs


def _run_cudnn(backward: bool, causal: bool, given: list[Tensor], made: list[Tensor]) -> None:
    import cudnn

    shapes = tuple((tuple(x.shape), x.stride()) for x in given[: 5 if backward else 3])
    graph, inputs, outputs = _cudnn_graph(shapes, given[0].dtype, causal, backward)
    handle = _cudnn_handle()
    cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)
    size = graph.get_workspace_size()
    workspace = torch.empty(size, dtype=torch.uint8, device=given[0].device)
    pairs = zip((*inputs, *outputs), (*given, *made), strict=True)
    graph.execute(dict(pairs), workspace, handle=handle)


@_rival("cuDNN graph")
def cudnn_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Return o (B, H, S, D) and the log-sum-exp (B, H, S) in fp32, by a graph of cuDNN's that is
    built before the timing."""
    o, lse = torch.empty_like(q), q.new_empty(*q.shape[:3], 1, dtype=torch.float32)
    _run_cudnn(False, causal, [q, k, v], [o, lse])
    return o, lse[..., 0]


@_rival("cuDNN graph")
def cudnn_attention_backward(
    go: Tensor,
    glse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v (B, H, S, D); glse is taken for 0."""
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    _run_cudnn(True, causal, [q, k, v, o, go, lse[..., None]], gradients)
    return tuple(gradients)


@cache
def use_nvcc() -> None:
    """Let libraries that compile kernels when they are called find the course's compilers.

    Raise ToolchainError if there is no nvcc.
    """
    use_compilers("cuda")
