"""Rungs that call cuBLAS."""

from common.day import Rung, Skip


def library(name, idea, target=None):
    """A rung that calls cuBLAS; skipped where there is none."""

    def load(builder):
        if builder.device == "cpu":
            raise Skip("cuBLAS needs an NVIDIA GPU; our own kernel runs here")
        operators = builder.operators()
        if not hasattr(operators, name):
            raise Skip(
                "cuBLAS's headers are missing: python -m pip install nvidia-cublas, and remove "
                "the cached build"
            )
        return getattr(operators, name)

    return Rung(name, idea, target=target, load=load)
