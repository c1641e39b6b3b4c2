"""The table of PTX wrappers: complete, up to date, and every wrapper exercised by a test."""

import pytest

from tests import wrapper_table
from tests.compilations import FOLDER

# Device functions of these headers that emit no instruction themselves.
HELPERS = {"shared_address", "swizzled", "wgmma_descriptor", "check_wgmma", "pin_registers"}


def test_the_table_is_what_the_headers_and_the_proofs_make_it() -> None:
    written = wrapper_table.README.read_text(encoding="utf-8")
    assert written == wrapper_table.table(), "run: python -m tests.wrapper_table"


def test_every_device_function_says_what_it_emits() -> None:
    found = {wrapper.name for wrapper in wrapper_table.wrappers()}
    assert {"cp_async", "redux_xor", "dp4a", "mma_m16n8k16", "mbarrier_wait"} <= found
    for header in sorted(wrapper_table.HEADERS.glob("*.cuh")):
        silent = wrapper_table.device_functions(header) - found - HELPERS
        assert not silent, f"{header.name}: no `// PTX: …;` above {', '.join(sorted(silent))}"


@pytest.mark.parametrize("wrapper", wrapper_table.wrappers(), ids=lambda w: w.name)
def test_every_wrapper_is_exercised_on_cpu_and_gpu(wrapper: wrapper_table.Wrapper) -> None:
    kernels = [path for path in FOLDER.glob("*.cu") if wrapper.name in wrapper_table.used_by(path)]
    assert kernels, f"no kernel of tests/cpu_kernels calls ptx::{wrapper.name} without a mistake"
    assert wrapper.ptx and all(wrapper.since)


def test_a_proof_counts_for_the_code_that_it_ran() -> None:
    header = wrapper_table.HEADERS / "cp_async.cuh"
    comment_changed = header.read_text(encoding="utf-8") + "\n// one more comment\n"
    code_changed = comment_changed + "int x;\n"
    digests = []
    for text in (header.read_text(encoding="utf-8"), comment_changed, code_changed):
        digests.append(wrapper_table.digest(text))
    assert digests[0] == digests[1] != digests[2]
