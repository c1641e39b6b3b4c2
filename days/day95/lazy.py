"""Tensors that are not computed yet: each is an operation and its arguments, a node of a graph.

Shapes, dtypes and error messages are PyTorch's own: every operation is also done on tensors of the
device "meta", which have no elements.
"""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.bool)
REDUCTIONS = ("sum", "mean", "amax")
Number = (bool, int, float)


class Lazy:
    """op: "leaf", "squeeze", one of REDUCTIONS, or an element-wise operation of codegen.FORMULAS.
    args: tensors and numbers. meta: a tensor of the result's shape and dtype without elements.
    value: a leaf's tensor, None while a function is traced. name: of a leaf, for messages."""

    def __init__(self, op, args, meta, value=None, name=""):
        if meta.dtype not in DTYPES:
            kinds = " or ".join(map(_name, DTYPES))
            raise TypeError(f"{name or op}: expected {kinds}, got {_name(meta.dtype)}")
        self.op, self.args, self.meta, self.value, self.name = op, args, meta, value, name
        self.version = None if value is None else value._version

    @property
    def shape(self):
        return tuple(self.meta.shape)

    @property
    def dtype(self):
        return self.meta.dtype

    @property
    def inputs(self):
        """The arguments that are tensors."""
        return [arg for arg in self.args if isinstance(arg, Lazy)]

    def to(self, dtype):
        return Lazy(f"to_{_name(dtype)}", (self,), self.meta.to(dtype))

    def __neg__(self):
        return _apply("neg", torch.neg, self)

    __hash__ = object.__hash__  # __eq__, set below, compares elements

    def __bool__(self):
        raise TypeError("a Lazy has no truth value before it is computed; use where()")


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def leaf(tensor, name="tensor"):
    """A tensor that exists. It is not copied: a change before the graph is computed is refused."""
    check_leaf(tensor, name)
    return Lazy("leaf", (), tensor.to("meta"), tensor, name)


def check_leaf(tensor, name):
    """Raises TypeError for what is no tensor, ValueError for one that kernels could not read."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: requires a gradient, and a Lazy has none")


def _apply(op, function, *args):
    """The node of an operation, which is done on meta tensors for its shape and dtype."""
    for arg in args:
        if not isinstance(arg, (Lazy, *Number)):
            raise TypeError(f"{op}: expected a Lazy or a number, got {type(arg).__name__}")
    metas = [arg.meta if isinstance(arg, Lazy) else arg for arg in args]
    try:
        return Lazy(op, args, function(*metas))
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(_described(arg) for arg in args)
        raise type(error)(f"{op} of {shapes}: {error}") from None


def _described(arg):
    return f"{arg.name or arg.op} {arg.shape}" if isinstance(arg, Lazy) else repr(arg)


def where(condition, a, b):
    """As torch.where."""
    return _apply("where", torch.where, condition, a, b)


def maximum(a, b):
    """As torch.maximum; either may be a number."""
    return _apply("maximum", lambda x, y: x * y, a, b)  # a product has the same shape and dtype


def minimum(a, b):
    """As torch.minimum; either may be a number."""
    return _apply("minimum", lambda x, y: x * y, a, b)


def _binary(op):
    function = getattr(torch, op)
    return (
        lambda self, other: _apply(op, function, self, other),
        lambda self, other: _apply(op, function, other, self),
    )


def _unary(op):
    return lambda self: _apply(op, getattr(torch, op), self)


def _reduction(op):
    def method(self, dim=-1, keepdim=False):
        if dim not in (-1, self.meta.dim() - 1):
            raise ValueError(f"{op}: only the last dimension is reduced, got dim={dim}")
        node = _apply(op, lambda x: getattr(torch, op)(x, -1, keepdim=True), self)
        return node if keepdim else Lazy("squeeze", (node,), node.meta.squeeze(-1))

    return method


UNARY = ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "abs", "relu", "square")
BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
for _op in UNARY:
    setattr(Lazy, _op, _unary(_op))
for _op in REDUCTIONS:
    setattr(Lazy, _op, _reduction(_op))
for _method, _op in BINARY.items():
    _forward, _reflected = _binary(_op)
    setattr(Lazy, f"__{_method}__", _forward)
    setattr(Lazy, f"__r{_method}__", _reflected)
for _op in COMPARISONS:
    setattr(Lazy, f"__{_op}__", _binary(_op)[0])
