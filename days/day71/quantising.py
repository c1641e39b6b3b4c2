"""NF4: levels and thresholds, both directions in PyTorch, and inputs."""

import functools

import torch

from common.references.nf4 import block_codes, in_blocks, nf4_levels

LARGEST = torch.finfo(torch.float32).max


LEVELS = nf4_levels()
THRESHOLDS = ((LEVELS[1:].double() + LEVELS[:-1].double()) / 2).float()


@functools.cache
def on_device(device):
    """The thresholds, and the 256 pairs of levels that bytes stand for. A CUDA graph can not hold
    the copy from the host, so it is made once."""
    return THRESHOLDS.to(device), torch.cartesian_prod(LEVELS, LEVELS).to(device)


def bytes_of(codes, n):
    """(blocks, block) codes -> (⌈n / 2⌉) bytes."""
    pairs = codes.to(torch.uint8).flatten()[: n + n % 2].reshape(-1, 2)
    return pairs[:, 0] << 4 | pairs[:, 1]


def quantized(x, block):
    codes, absmax = block_codes(in_blocks(x.float(), block), on_device(x.device)[0])
    return bytes_of(codes, len(x)), absmax


def _quantized(x, block, thresholds):
    blocks = x.view(-1, block)
    absmax = blocks.abs().amax(1, keepdim=True).float()
    inverse = (1 / absmax).clamp(max=LARGEST)
    codes = torch.bucketize(blocks * inverse, thresholds, out_int32=True)
    pairs = codes.to(torch.uint8).view(-1, 2)
    return pairs[:, 0] << 4 | pairs[:, 1], absmax.view(-1)


def quantized_pytorch(x, block):
    """For whole blocks of finite numbers."""
    return _quantized(x, block, on_device(x.device)[0])


def dequantized(codes, absmax, n, block):
    both = torch.stack([codes >> 4, codes & 15], 1).flatten()[:n].long()
    values = in_blocks(LEVELS.to(absmax)[both], block) * absmax[:, None]
    return values.flatten()[:n].to(
        torch.float64 if absmax.dtype == torch.float64 else torch.bfloat16
    )


def _dequantized(codes, absmax, block, pairs):
    return (pairs[codes.int()].view(-1, block) * absmax[:, None]).bfloat16().view(-1)


def dequantized_pytorch(codes, absmax, n, block):
    """For whole blocks: a table of 256 pairs of levels, indexed by bytes."""
    return _dequantized(codes, absmax, block, on_device(codes.device)[1])


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=False)


def quantized_compiled(x, block):
    return _compiled(_quantized)(x, block, on_device(x.device)[0])


def dequantized_compiled(codes, absmax, n, block):
    return _compiled(_dequantized)(codes, absmax, block, on_device(codes.device)[1])


def quantized_bitsandbytes(x, block):
    from bitsandbytes.functional import quantize_4bit

    codes, state = quantize_4bit(x, blocksize=block, quant_type="nf4")
    return codes.view(-1), state.absmax


def dequantized_bitsandbytes(codes, absmax, n, block):
    from bitsandbytes.functional import QuantState, dequantize_4bit

    options = {"dtype": torch.bfloat16, "blocksize": block, "quant_type": "nf4"}
    state = QuantState(absmax, torch.Size([n]), **options)
    return dequantize_4bit(codes[:, None], state).flatten()


def numbers_and_block(case, draw):
    """Block 1 is 0; block 2 has ties: 1 for the absmax, thresholds, their neighbours in fp32."""
    n, block = case.shape
    x = draw(n)
    x[block : 2 * block] = 0
    some = x[2 * block : 2 * block + 46]
    t = THRESHOLDS.to(x.device)
    one = torch.ones(1, device=x.device)
    ties = torch.cat([one, t, t.nextafter(one), t.nextafter(-one)])
    some.copy_(ties[: len(some)])
    if n > 2 * block + block:
        x[2 * block + 46 : 3 * block] = 0
    return x, block


def codes_and_absmax(case, draw):
    n, block = case.shape
    codes = draw((n + 1) // 2, dtype="uint8")
    return codes, draw(-(-n // block), dtype="float32").abs(), n, block
