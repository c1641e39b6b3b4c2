"""Facts read from cuobjdump's listings, and the number of lines of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.build.machine_code import lines_of, parsed

USAGE = """\
Resource usage:
 Common:
  GLOBAL:0
 Function _Z10add_kernelIfEvPKT_l:
  REG:22 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:576 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z10mul_kernelIfEvPKT_l:
  REG:10 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:576 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
LISTING = """\
\t\tFunction : _Z10mul_kernelIfEvPKT_l
        /*0000*/                   STG.E.64 desc[UR6][R2.64], R4 ;    /* 0x01 */
\t\tFunction : _Z10add_kernelIfEvPKT_l
\t.headerflags    @"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;             /* 0x02 */
                                                                      /* 0x03 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR6][R2.64] ;  /* 0x04 */
        /*0020*/                   LDG.E R8, desc[UR6][R6.64] ;       /* 0x05 */
        /*0030*/              @P1  STG.E.U16 desc[UR6][R6.64], R8 ;   /* 0x06 */
        /*0040*/                   SHFL.BFLY PT, R2, R0, 0x8, 0x1f ;  /* 0x0a */
        /*0050*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;      /* 0x0b */
        /*0060*/              @!P0 SHFL.DOWN PT, R2, R0, 0x4, 0x1f ;  /* 0x0c */
        /*0070*/                   EXIT ;                             /* 0x07 */
        /*0080*/                   BRA 0x80;                          /* 0x08 */
        /*0090*/                   NOP;                               /* 0x09 */
"""
TENSOR_CORES = """\
\t\tFunction : _Z10mul_kernelIfEvPKT_l
        /*0000*/             @!P1  LDGSTS.E.BYPASS.128 [R2], [R4.64] ; /* 0x01 */
        /*0010*/                   UTMALDG.2D [UR4], [UR6] ;           /* 0x02 */
        /*0020*/                   LDSM.16.MT88.4 R4, [R8] ;           /* 0x03 */
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ; /* 0x04 */
        /*0040*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ; /* 0x05 */
        /*0050*/                   LDS R2, [R4] ;                      /* 0x06 */
"""


def test_a_kernel_is_found_among_others() -> None:
    code = parsed(USAGE, LISTING, "add_kernelIfE")
    assert (code.registers, code.stack) == (22, 8)
    assert code.loads == {16: 1, 4: 1}
    assert code.stores == {2: 1}
    assert code.instructions == 9
    assert (code.barriers, code.shuffles) == (1, 2)
    assert parsed(USAGE, LISTING, "mul_kernel").stores == {8: 1}


def test_what_serves_tensor_cores_is_counted() -> None:
    code = parsed(USAGE, TENSOR_CORES, "mul_kernel")
    assert (code.copies, code.ldmatrix, code.products) == (2, 1, 2)
    assert code.loads == {}
    assert parsed(USAGE, LISTING, "add_kernelIfE").products == 0


SPLIT = """\
\t\tFunction : _Z10mul_kernelIfEvPKT_l
        /*0000*/                   LDG.E.U16 R4, desc[UR6][R2.64] ; /* 0x01 */
        /*0010*/              @!P1 LDG.E.U16 R5, desc[UR6][R2.64+0x2] ; /* 0x02 */
        /*0020*/                   LDG.E.64 R6, desc[UR6][R2.64+0x8] ; /* 0x03 */
        /*0030*/                   LDG.E R8, desc[UR6][R10.64+-0x10] ; /* 0x04 */
        /*0040*/                   LDG.E R9, desc[UR6][R10.64+-0xc] ; /* 0x05 */
        /*0050*/                   LDG.E R12, desc[UR6][R10.64+-0x8] ; /* 0x06 */
        /*0060*/                   LDG.E R13, desc[UR6][R10.64+-0x4] ; /* 0x07 */
        /*0070*/                   LDG.E R14, desc[UR6][R10.64] ; /* 0x08 */
        /*0080*/                   LDGSTS.E.BYPASS.128 [R2+0x10], desc[UR6][R4.64] ; /* 0x09 */
        /*0090*/                   UBLKCP.S.G [UR4], [UR6], UR8 ; /* 0x0a */
"""


def test_a_vector_that_is_loaded_in_pieces_is_counted() -> None:
    """The four loads from R10 - 16 on are one vector; two elements from R2 are not."""
    code = parsed(USAGE, SPLIT, "mul_kernel")
    assert code.split == 1
    assert code.loads == {2: 2, 8: 1, 4: 5} and code.cp_async == {16: 1} and code.bulk == 1


def test_a_kernel_that_is_not_there_is_named_with_the_others() -> None:
    with pytest.raises(LookupError, match="no kernel other, but _Z10add_kernel"):
        parsed(USAGE, LISTING, "other")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.py",
            "@jit\ndef k(\n    x,\n):  # fmt: skip\n    f(x)\n\n\ndef other():\n    pass\n",
            5,
        ),
        (
            "a.cu",
            "// A comment.\ntemplate <int N>\n__global__ void k(int n) {\n  // why\n\n"
            "  f(n);\n}\n\nk();\n",
            4,
        ),
        (
            "a.py",
            "@triton.jit\ndef k(x):\n    # why\n    a = 1\n\n    b = 2\n\n\ndef g():\n    pass\n",
            4,
        ),
    ],
)
def test_lines_are_counted_without_comments(
    tmp_path: Path, name: str, text: str, expected: int
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert lines_of(file, "k") == expected
    with pytest.raises(LookupError, match=r"a\.\w+ has no missing"):
        lines_of(file, "missing")
