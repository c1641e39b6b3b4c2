"""The vision transformer by the course's operators, with the twin's parameters."""

from functools import cache

import torch
import torch.nn.functional as F
from torch.func import functional_call

from .twin import HEAD, ViT

# What the operators take, and what the twin calls it; * is the number of the layer, and a parameter
# of the layers is one tensor with the layers in front.
_LAYER = "encoder.layers.*."
PARAMETERS = {
    "patch_weight": "patches.weight",
    "patch_bias": "patches.bias",
    "class_token": "class_token",
    "positions": "positions",
    "norm1_weight": _LAYER + "norm1.weight",
    "norm1_bias": _LAYER + "norm1.bias",
    "in_weight": _LAYER + "self_attn.in_proj_weight",
    "in_bias": _LAYER + "self_attn.in_proj_bias",
    "out_weight": _LAYER + "self_attn.out_proj.weight",
    "out_bias": _LAYER + "self_attn.out_proj.bias",
    "norm2_weight": _LAYER + "norm2.weight",
    "norm2_bias": _LAYER + "norm2.bias",
    "up_weight": _LAYER + "linear1.weight",
    "up_bias": _LAYER + "linear1.bias",
    "down_weight": _LAYER + "linear2.weight",
    "down_bias": _LAYER + "linear2.bias",
    "norm_weight": "encoder.norm.weight",
    "norm_bias": "encoder.norm.bias",
    "head_weight": "head.weight",
    "head_bias": "head.bias",
}


def shapes_of(channels, patch, patches, embed, layers, classes):
    """The shape of each parameter, by its name in PARAMETERS."""
    E, L = embed, layers
    rows = {"patch": (E, channels, patch, patch), "in": (L, 3 * E, E), "out": (L, E, E)}
    rows |= {"up": (L, 4 * E, E), "down": (L, E, 4 * E), "head": (classes, E)}
    found = {"class_token": (E,), "positions": (1 + patches, E), "norm_weight": (E,)}
    found |= {"norm_bias": (E,)} | {f"{name}_weight": shape for name, shape in rows.items()}
    found |= {f"{name}_bias": shape[:-1] for name, shape in rows.items()} | {"patch_bias": (E,)}
    found |= {f"norm{i}_{part}": (L, E) for i in (1, 2) for part in ("weight", "bias")}
    return {name: found[name] for name in PARAMETERS}


def stacked(state):
    """The parameters, in the order of PARAMETERS, of a twin's state_dict."""

    def layers(name):
        numbers = range(len([key for key in state if key.endswith("self_attn.in_proj_bias")]))
        return torch.stack([state[name.replace("*", str(n))] for n in numbers])

    return tuple(layers(name) if "*" in name else state[name] for name in PARAMETERS.values())


@cache
def empty_twin(*sizes):
    """A twin without memory of its own: functional_call gives it the parameters."""
    return ViT(*sizes, device="meta")


def twin(images, *weights):
    """The logits by torch.nn."""
    given = dict(zip(PARAMETERS, weights, strict=True))
    E, channels, patch, _ = given["patch_weight"].shape
    height, width = (size // patch for size in images.shape[2:])
    L, K = len(given["in_weight"]), len(given["head_weight"])
    state = {}
    for name, path in PARAMETERS.items():
        for n, one in enumerate(given[name] if "*" in path else [given[name]]):
            state[path.replace("*", str(n))] = one
    return functional_call(empty_twin(channels, patch, height, width, E, L, K), state, (images,))


def check_inputs(images, weights):
    """Raises ValueError naming an argument that does not fit the others."""
    given = dict(zip(PARAMETERS, weights, strict=True))
    for name, dims in (("patch_weight", 4), ("in_weight", 3), ("head_weight", 2)):
        if given[name].dim() != dims:
            raise ValueError(f"{name}: expected {dims} dimensions, got {given[name].dim()}")
    E, channels, _, P = given["patch_weight"].shape
    if E == 0 or E % HEAD or P == 0:
        got = tuple(given["patch_weight"].shape)
        raise ValueError(f"patch_weight: expected {HEAD} rows per head and pixels, got {got}")
    if images.dim() != 4 or images.numel() == 0 or images.shape[2] % P or images.shape[3] % P:
        got = tuple(images.shape)
        raise ValueError(f"images: expected (B, C, H, W) of whole patches of {P}, got {got}")
    patches = (images.shape[2] // P) * (images.shape[3] // P)
    L, K = len(given["in_weight"]), len(given["head_weight"])
    if K == 0:
        raise ValueError("head_weight: expected one class or more, got none")
    expected = {"images": (len(images), channels, *images.shape[2:])}
    expected |= shapes_of(channels, P, patches, E, L, K)
    for name, tensor in {"images": images, **given}.items():
        if tensor.shape != expected[name]:
            raise ValueError(f"{name}: expected {expected[name]}, got {tuple(tensor.shape)}")
        if (tensor.dtype, tensor.device) != (images.dtype, images.device):
            raise ValueError(f"{name}: expected {images.dtype} on {images.device}, as images are")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor; call .contiguous()")


def separate():
    """The first rung of each day."""
    day09, day30, day32 = torch.ops.day09, torch.ops.day30, torch.ops.day32
    return (
        day32.embed_v1_unfold,
        day09.layer_norm_v1_two_passes,
        day30.add_norm_v1_separate,
        day30.bias_gelu_v1_two_passes,
    )


def fused():
    """One kernel for each of them, of the same days."""
    day09, day30, day32 = torch.ops.day09, torch.ops.day30, torch.ops.day32
    return (
        day32.embed_v3_all_columns,
        day09.layer_norm_v3_warp_a_row,
        day30.add_norm_v2_fused,
        day30.bias_gelu_v2_one_pass,
    )


def forward(kernels, images, *weights, attended=None):
    """The logits (B, classes) of images (B, channels, H, W), bf16 or fp16.

    kernels: what `separate` or `fused` gives. weights: as PARAMETERS names them, see `shapes_of`.
    attended: a list that gets q, k and v side by side, (B, S, 3E), and the logarithms of the sums
    of the softmax, (B, heads, S), of each layer. Raises ValueError for what does not fit.
    """
    check_inputs(images, weights)
    embed, layer_norm, add_norm, bias_gelu = kernels
    w = dict(zip(PARAMETERS, weights, strict=True))
    x = embed(images, w["patch_weight"], w["patch_bias"], w["class_token"], w["positions"])
    B, S, E = x.shape
    # Each addition to the residual stream also normalises, for the layer that comes next.
    norms = [*zip(w["norm1_weight"], w["norm1_bias"], strict=True)]
    norms.append((w["norm_weight"], w["norm_bias"]))
    x = x.view(B * S, E)
    y = layer_norm(x, *norms[0], 1e-5)
    for n in range(len(w["in_weight"])):
        qkv = F.linear(y, w["in_weight"][n], w["in_bias"][n]).view(B, S, 3 * E)
        o, lse = torch.ops.day28.packed_attention(qkv, E // HEAD)
        if attended is not None:
            attended.append((qkv, lse))
        o = F.linear(o.view(B * S, E), w["out_weight"][n], w["out_bias"][n])
        x, y = add_norm(o, x, w["norm2_weight"][n], w["norm2_bias"][n], 1e-5)
        hidden = bias_gelu(F.linear(y, w["up_weight"][n]), w["up_bias"][n])
        x, y = add_norm(F.linear(hidden, w["down_weight"][n], w["down_bias"][n]), x, *norms[n + 1])
    return F.linear(y.view(B, S, E)[:, 0], w["head_weight"], w["head_bias"])


def class_attention(qkv, lse):
    """How much the class token attends to each patch, (B, heads, patches), of what `forward` kept:
    each weight of the softmax again, from the logarithm of its row's sum."""
    q, k, _ = (rows.unflatten(-1, (-1, HEAD)).transpose(1, 2).float() for rows in qkv.chunk(3, -1))
    scores = (q[:, :, :1] @ k.mT)[:, :, 0] / HEAD**0.5
    return (scores - lse[:, :, :1]).exp()[:, :, 1:]
