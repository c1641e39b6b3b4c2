"""int8 and int4 in PyTorch: quantising, packing, and products of dequantised numbers."""

from functools import lru_cache

import torch
import torch.nn.functional as F

from common.day import Skip
from common.references.rivals import use_nvcc

GROUP = 128
BIT = (0, 16, 4, 20, 8, 24, 12, 28)  # where weight k of a word begins


def scaled_int8(x):
    """In fp32, as the kernel computes: x (rows, cols) -> (rows, cols) int8, (rows) scales."""
    x = x.float()
    largest = x.abs().amax(1) if x.shape[1] else x.new_zeros(x.shape[0])
    scale = largest / torch.tensor(127.0, device=x.device)  # on a GPU, "/ 127" is "* (1 / 127)"
    scale[scale == 0] = 1
    return (x / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def grouped_int4(w):
    """In fp32, with scales of bf16: w (N, K) -> (N, K / 8) words, (K / 128, N, 2) params."""
    if w.shape[1] % GROUP:
        raise ValueError(f"w: expected rows of a multiple of {GROUP} weights, got {w.shape[1]}")
    groups = w.float().reshape(len(w), w.shape[1] // GROUP, GROUP)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    steps = torch.tensor(15.0, device=w.device)  # on a GPU, "/ 15" is "* (1 / 15)"
    scale = (high / steps - low / steps).bfloat16().float()
    scale[scale == 0] = 1
    zero = (-low / scale).round().clamp(max=15)
    q = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    return packed(q.flatten(1)), torch.stack([scale.T, zero.T], 2).bfloat16()


def packed(q):
    """(N, K) whole numbers from 0 to 15 -> (N, K / 8) int32."""
    shift = torch.tensor(BIT, device=q.device)
    words = (q.long().reshape(len(q), q.shape[1] // 8, 8) << shift).sum(2)
    return words.to(torch.int32)  # the uppermost bit becomes the sign


def unpacked(words):
    """(N, K / 8) int32 -> (N, K) int32, from 0 to 15."""
    shift = torch.tensor(BIT, device=words.device, dtype=torch.int32)
    return (words[..., None] >> shift & 15).flatten(1)


def dequantized(words, params):
    """(N, K) weights, in the dtype of params."""
    scale, zero = (params[..., i].T.repeat_interleave(GROUP, 1) for i in (0, 1))
    return scale * (unpacked(words) - zero)


def linear(x, words, params):
    return F.linear(x, dequantized(words, params))


@lru_cache(maxsize=1)
def kept(words, params):
    return dequantized(words, params)


def linear_bf16(x, words, params):
    """What a user without int4 calls: cuBLAS, on weights of bf16 that were stored before."""
    return F.linear(x, kept(words, params))


@lru_cache(maxsize=1)
def repacked(words, params):
    """The weights as PyTorch's own int4 kernel takes them: W = scale · (q - 8) + zero."""
    q = unpacked(words)
    pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    scale, zero = params[..., 0], params[..., 1]
    both = torch.stack([scale, (8 - zero) * scale], 2).contiguous()
    return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), both


def tinygemm(x, words, params):
    """PyTorch's int4 kernel, which torchao calls; its weights are repacked before the timing."""
    if x.device.type == "cpu":
        raise Skip("tinygemm needs a GPU")
    weights, both = repacked(words, params)
    return torch.ops.aten._weight_int4pack_mm(x, weights, GROUP, both)


@lru_cache(maxsize=1)
def humming_layer(words, params):
    """Humming quantises the same weights again, by the same groups, to its own format."""
    use_nvcc()
    from humming.layer import HummingLayer

    weights = dequantized(words, params)
    options = {"dtype": "uint4", "group_size": GROUP, "has_zero_point": True}
    layer = HummingLayer(*weights.shape, options, torch_dtype=weights.dtype).to(words.device)
    layer.load_from_unquantized(weights)
    layer.transform()
    return layer


def humming(x, words, params):
    """Its weights are repacked before the timing."""
    return humming_layer(words, params)(x)


def product(a, b):
    """Exact in float64 up to K = 2^39; then wrapped to int32, as a kernel's sums are."""
    return (a.double() @ b.double().T).long().to(torch.int32)


def scaled_product(a, b, a_scale, b_scale):
    """In the dtype of the scales or, where that is fp32, rounded to bf16."""
    wide = a_scale.dtype
    y = a_scale[:, None] * b_scale * product(a, b).to(wide)
    return y if wide == torch.float64 else y.bfloat16()


def int_mm(a, b):
    """cuBLASLt's product of int8, which takes b transposed and more than 16 rows of a."""
    return torch._int_mm(a, b.T)


def int_mm_scaled(a, b, a_scale, b_scale):
    return (int_mm(a, b) * a_scale[:, None] * b_scale).bfloat16()


def row_errors(operators, w):
    """The median over the rows of w of |error| / |row|, for int8 with one scale, int8 per row, int4
    per row and int4 per group of 128. w: (N, K) fp32."""

    def error(got):
        return ((got - w).norm(dim=1) / w.norm(dim=1)).median().item()

    def of_int8(x):
        q, scale = operators.quantize_int8(x)
        return (q * scale[:, None]).reshape(w.shape)

    low, high = w.amin(1, keepdim=True).clamp(max=0), w.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = (-low / scale).round()
    per_row = scale * (((w / scale).round() + zero).clamp(0, 15) - zero)
    per_group = dequantized(*operators.quantize_int4(w)).float()
    return error(of_int8(w.reshape(1, -1))), error(of_int8(w)), error(per_row), error(per_group)
