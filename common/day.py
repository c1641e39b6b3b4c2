"""What a day.py imports: the vocabulary in which a day says what it is.

Listing days reads day.py without running it. What runs it has imported PyTorch already.
"""

from common.base.cache import Entry, cache_directory, cached, digest
from common.base.declaration import (
    COMPILE,
    CUBLAS_UNWATCHED,
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    one_tensor,
    streamed,
)
from common.base.outcome import RungOutcome, Skip, Timing
from common.base.where import slug
from common.bench.ceilings import raise_ceilings
from common.bench.counters import (
    SECTORS,
    WAVEFRONTS,
    Kernel,
    NotCounted,
    columns_file,
    counted_columns,
)
from common.bench.sgemm_rates import SGEMM_SIZES, sgemm_operands, sgemm_rates, size_name
from common.bench.showing import (
    card_state,
    peak_memory,
    print_table,
    rows_as_json,
    seconds,
    seconds_in_turn,
)
from common.bench.traces import launches_of, traced_events
from common.bench.two_compilers import print_machine_code
from common.build.library import operators_of, use_compilers
from common.build.machine_code import TritonKernel
from common.check.arguments import require, require_float
from common.check.attention import attention, attention_by, ragged_lengths, unused
from common.check.gpt2 import gpt2_shapes
from common.check.nf4 import block_codes, in_blocks, nf4_levels
from common.check.philox import philox_words
from common.check.sgemm import (
    sgemm,
    sgemm_by_cublas,
    sgemm_cost,
    sgemm_inputs,
    sgemm_problems,
)
from common.check.sparse_matrices import (
    coo_product,
    csr_product,
    csr_to_ell,
    cusparse_product,
    draw_on,
    ell_product,
    row_lengths,
    rows_of,
    sparse_matrix,
)
from common.cpu.models import Card, played
from common.report.markdown import Stored
from common.report.picture import hills_at_night, save_pictures
from common.report.plot import roofline
from common.report.stored import read_stored
from common.report.svg import figure_as_svg
from common.tools.watched_program import Said, Way, run_program, ways_to_run

__all__ = [
    "COMPILE",
    "CUBLAS_UNWATCHED",
    "SECTORS",
    "SGEMM_SIZES",
    "WAVEFRONTS",
    "Card",
    "Case",
    "Cost",
    "Entry",
    "Exercise",
    "Kernel",
    "Library",
    "NotCounted",
    "Problem",
    "Rung",
    "RungOutcome",
    "Said",
    "Skip",
    "Stored",
    "Target",
    "Timing",
    "Tolerance",
    "TritonKernel",
    "Way",
    "attention",
    "attention_by",
    "block_codes",
    "cache_directory",
    "cached",
    "card_state",
    "columns_file",
    "coo_product",
    "counted_columns",
    "csr_product",
    "csr_to_ell",
    "cusparse_product",
    "digest",
    "draw_on",
    "ell_product",
    "figure_as_svg",
    "gpt2_shapes",
    "grid",
    "hills_at_night",
    "in_blocks",
    "launches_of",
    "nf4_levels",
    "one_tensor",
    "operators_of",
    "peak_memory",
    "philox_words",
    "played",
    "print_machine_code",
    "print_table",
    "ragged_lengths",
    "raise_ceilings",
    "read_stored",
    "require",
    "require_float",
    "roofline",
    "row_lengths",
    "rows_as_json",
    "rows_of",
    "run_program",
    "save_pictures",
    "seconds",
    "seconds_in_turn",
    "sgemm",
    "sgemm_by_cublas",
    "sgemm_cost",
    "sgemm_inputs",
    "sgemm_operands",
    "sgemm_problems",
    "sgemm_rates",
    "size_name",
    "slug",
    "sparse_matrix",
    "streamed",
    "traced_events",
    "unused",
    "use_compilers",
    "ways_to_run",
]
