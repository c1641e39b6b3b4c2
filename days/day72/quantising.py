"""NF4 with double quantisation in PyTorch: both directions, products, and inputs."""

from functools import cache, lru_cache

import torch

from common.day import print_table
from common.references.nf4 import block_codes, in_blocks, nf4_levels

BLOCK, GROUP = 64, 256  # weights per absmax, absmaxes per scale


def dynamic_levels():
    """256 levels in fp32, ascending: 0, 1 and, for e from 0 to 6, 2^e of both signs that divide
    10^(e - 7) to 10^(e - 6) evenly (T. Dettmers et al., 8-bit optimizers)."""
    values = [0.0, 1.0]
    for e in range(7):
        edges = torch.linspace(0.1, 1, 2**e + 1)
        middles = ((edges[1:] + edges[:-1]) / 2 * 10.0 ** (e - 6)).tolist()
        values += [*middles, *(-middle for middle in middles)]
    return torch.tensor(sorted(values), dtype=torch.float32)


NF4, DYNAMIC = nf4_levels(), dynamic_levels()


def quantized(absmax, levels, offset):
    thresholds = (levels[:-1].float() + levels[1:].float()) / 2
    codes, scales = block_codes(in_blocks(absmax.float() - offset.float(), GROUP), thresholds)
    return codes.to(torch.uint8).flatten()[: len(absmax)], scales


def absmaxes(q, levels, scales, offset):
    """(N, K / 64) codes -> (N, K / 64) absmaxes, in the dtype of scales."""
    each = scales.repeat_interleave(GROUP)[: q.numel()].view(q.shape)
    return levels[q.int()] * each + offset


def weights(codes, absmax, dtype):
    """(N, K) in that dtype. codes: (N, K / 2) uint8."""
    both = torch.stack([codes >> 4, codes & 15], 2).int()
    values = NF4.to(absmax)[both].view(*absmax.shape, BLOCK) * absmax[..., None]
    return values.to(dtype).flatten(1)


def product(x, codes, q, levels, scales, offset):
    return torch.mv(weights(codes, absmaxes(q, levels, scales, offset), x.dtype), x)


@lru_cache(maxsize=1)
def kept(codes, q, levels, scales, offset):
    return weights(codes, absmaxes(q, levels, scales, offset), torch.bfloat16)


def product_bf16(x, *quantised):
    """What a user without NF4 calls: cuBLAS, on weights of bf16 that were stored before."""
    return torch.mv(kept(*quantised), x)


def product_mm(x, *quantised):
    """cuBLAS's matrix product, with a matrix of one column."""
    return torch.matmul(kept(*quantised), x[:, None])[:, 0]


def product_bitsandbytes(x, codes, q, levels, scales, offset):
    """One kernel for the absmaxes, an addition, and one for the product."""
    from bitsandbytes.functional import QuantState, gemv_4bit

    K = len(x)
    inner = {"code": levels, "blocksize": GROUP, "dtype": torch.float32}
    state = QuantState(
        q.flatten(),
        torch.Size([len(codes), K]),
        code=on_device(x.device),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=x.dtype,
        offset=offset,
        state2=QuantState(scales, **inner),
    )
    return gemv_4bit(x[None], codes.view(1, -1), state=state)[0]


@cache
def on_device(device):
    """The levels; a CUDA graph cannot hold the copy from the host, so it is made once."""
    return NF4.to(device)


def absmaxes_to_quantize(case, draw):
    """Uniform values: group 1 has ties, with offset 0. Else group 2, if there is one, is constant.
    Values that are not finite: another kind of group after each."""
    (n,) = case.shape
    shape = (n // GROUP, GROUP) if case.values == "nonfinite" else (n,)
    absmax = draw(*shape).view(-1)
    levels, offset = draw(len(DYNAMIC)), draw(1, values="normal").abs()
    levels.copy_(DYNAMIC)
    if case.values == "uniform":
        offset.zero_()
        thresholds = (levels[:-1] + levels[1:]) / 2
        absmax[GROUP : 2 * GROUP - 1] = thresholds[: max(0, n - GROUP)]
        absmax[2 * GROUP - 1 : 2 * GROUP] = 1
    else:
        absmax[2 * GROUP : 3 * GROUP] = offset
    return absmax, levels, offset


def vector_and_weights(case, draw):
    """x, and codes, q, levels, scales and offset of (N, K) weights."""
    N, K = case.shape
    x, codes = draw(K), draw(N, K // 2, dtype="uint8")
    blocks = K // BLOCK
    q, levels = draw(N, blocks, dtype="uint8"), draw(len(DYNAMIC), dtype="float32")
    levels.copy_(DYNAMIC)
    scales = draw(-(-N * blocks // GROUP), dtype="float32", low=0.01, high=0.1)
    return x, codes, q, levels, scales, draw(1, dtype="float32", low=0.2, high=0.3)


def errors(operators, w):
    """|error| / |w| of w (n) fp32, on its device: with absmaxes in fp32, and with theirs in 8
    bits."""
    absmax = in_blocks(w, BLOCK).abs().amax(1)
    thresholds = ((NF4[1:].double() + NF4[:-1].double()) / 2).float().to(w)
    codes = torch.bucketize(in_blocks(w, BLOCK) / absmax[:, None], thresholds)
    levels, offset = DYNAMIC.to(w), absmax.mean().view(1)
    q, scales = operators.quantize_absmax(absmax, levels, offset)
    twice = absmaxes(q, levels, scales, offset)
    for each in (absmax, twice):
        yield ((NF4.to(w)[codes] * each[:, None]).view(-1) - w).norm() / w.norm()


def show(operators, device):
    """Prints the error of 2^20 weights, with absmaxes in fp32 and quantised themselves."""
    generator, rows = torch.Generator().manual_seed(72), []
    for name, degrees in (("normal", None), ("Student's t, 5 degrees", 5)):
        w = torch.randn(1 << 20, generator=generator)
        if degrees:
            chi = torch.randn(degrees, 1 << 20, generator=generator).square().sum(0)
            w *= (degrees / chi).sqrt()
        once, twice = errors(operators, w.to(device))
        rows.append([name, f"{100 * once:.3f} %", f"{100 * twice:.3f} %"])
    print("error of NF4 weights, root mean square, relative to the weights")
    print_table(["weights", "fp32 absmax, 4.500 bits", "8-bit absmax, 4.127 bits"], rows)
