"""Rungs in Numba, which is optional: they are skipped where it is missing."""

import importlib
import os
from functools import partial

from common.day import Rung, Skip


def load(name, builder):
    if builder.device == "cpu":
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read where Numba is imported
    try:
        importlib.import_module("numba.cuda")
    except ImportError as error:
        raise Skip(
            f"Numba is missing: python -m pip install 'numba-cuda[cu13]' ({error})"
        ) from error
    return getattr(importlib.import_module(".patterns_numba", __package__), name)


def numba_rung(name, idea):
    """A rung that is a function of that name in patterns_numba.py."""
    return Rung(name, idea, load=partial(load, name))
