"""What tests/sanitize_gpu.sh makes of racecheck's findings: those misread, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from race_report import findings, main, places_of

FEW = """========= Error: Race reported between Write access at void multiply<block_q4_0, block_q4_0, (int)1, (int)1>(const FewArgs &, int)::[lambda(int, int) (instance 1)]::operator ()(int, int) const+0x6ed0 in mul_mat_few.cu:270
=========     and Read access at void add<(int)1, (int)1>(const FewArgs &, int)::[lambda(int, int) (instance 1)]::operator ()(int, int) const+0x29c0 in mul_mat_few.cu:364 [5040 hazards]
=========     and Read access at void add<(int)1, (int)1>(const FewArgs &, int)::[lambda(int, int) (instance 1)]::operator ()(int, int) const+0x2a00 in mul_mat_few.cu:364 [5040 hazards]
=========
"""  # noqa: E501
EXITED = """========= Potential invalid __shared__ write of size 16 bytes
=========     at address_at(unsigned int, int)+0xa2b0 in cluster.cuh:31
=========     by thread (224,0,0) in block (0,0,0)
=========     Address 0x1009200 is located in a block that might have already exited
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x4cd39] in cydriver.cpython-312-x86_64-linux-gnu.so
=========
"""
JOINED = """========= Error: Race reported between Write access at address_at(unsigned int, int)+0xa280 in cluster.cuh:31
=========     and Read access at Joiner<(int)32>::finish_pending()+0xb8f0 in mul_mat_integers.cu:244 [3968 hazards]
=========
"""  # noqa: E501
FILLED = """========= Error: Race reported between Write access at copy16_async(unsigned int, const char *)+0x13200 in async_copy.cuh:12
=========     and Read access at word_at2(const unsigned char *)+0x12a0 in eight.cuh:15 [496 hazards]
=========     and Read access at gf_scale_q3_K(const unsigned char *, int)+0x2b40 in q3_k.h:20 [256 hazards]
=========
"""  # noqa: E501
OWN = """tests/gpu/test_fragments.py::test_any ========= Warning: Race reported between Write access at copy_bulk(unsigned int, const char *, unsigned int, unsigned int, unsigned long long)+0xd70 in bulk_copy.cuh:34
=========     and Read access at FragmentHalf<block_q4_0>::load(const char *, int, int)+0x36f0 in fragments.cuh:141 [512 hazards]
=========     and Read access at FragmentHalf<block_q4_0>::two(const char *, unsigned int *)+0x3730 in fragments.cuh:163 [64 hazards]
=========
"""  # noqa: E501
LIBRARY = """========= Error: Race reported between Read access at nvjet_sm90_hss_64x8_64x16_1x4_h_bz_splitK_TNT+0xb20
=========     and Write access at nvjet_sm90_hss_64x8_64x16_1x4_h_bz_splitK_TNT+0x44d0 [24 hazards]
=========
"""  # noqa: E501
BEGIN = "========= COMPUTE-SANITIZER\n.. [100%]\n2 passed in 7.96s\n"
END = "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n"


def report(tmp_path: Path, *texts: str) -> int:
    (tmp_path / "log").write_text("".join(texts))
    return main([str(tmp_path / "log")])


def test_what_is_misread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert places_of(FEW) == {("multiply", "mul_mat_few.cu"), ("add", "mul_mat_few.cu")}
    assert len(findings(BEGIN + FEW + FEW + EXITED + JOINED + END)) == 4
    assert report(tmp_path, BEGIN, FEW, FEW, EXITED, JOINED, END) == 0
    out = capsys.readouterr().out
    assert "misread 2 times: add (mul_mat_few.cu) and multiply (mul_mat_few.cu)" in out
    assert report(tmp_path, BEGIN, END) == 0
    assert report(tmp_path, BEGIN, FILLED, LIBRARY, END) == 0
    out = capsys.readouterr().out
    assert "misread 1 times: copy16_async (async_copy.cuh) and reads of a stage: a stage" in out
    assert "misread 1 times: kernels of a library" in out
    assert report(tmp_path, BEGIN, OWN, END) == 0
    assert (
        "copy_bulk (bulk_copy.cuh) and reads of a stage: products have used"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "other",
    [
        FEW.replace("void add<", "void multiply<"),  # both in one function
        FEW.replace("mul_mat_few.cu:364", "mul_mat_vec.cu:364"),
        FEW.replace(" in mul_mat_few.cu:270", ""),  # a place without its line
        JOINED.replace("finish_pending", "give"),
        EXITED.replace("address_at", "store"),
        FILLED.replace("copy16_async", "copy_or_zeros"),
        FILLED.replace("eight.cuh", "attention_mma.cuh"),  # no ring of weights
        FILLED.replace("and Read", "and Write"),
        OWN.replace("fragments.cuh:163", "int8_weights.cuh:163"),  # of two rings
        FILLED.replace("copy16_async", "bring").replace("async_copy.cuh", "mul_mat_wide.cu"),
        LIBRARY.replace("nvjet_sm90_hss", "mul_mat_wide"),
        "========= Invalid __shared__ read of size 4 bytes\n=========     at f()+0x10\n",
    ],
)
def test_anything_else_is_an_error(
    tmp_path: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, BEGIN, FEW, other, END) == 1
    assert "1 times:" in capsys.readouterr().out


def test_a_process_that_was_ended_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, BEGIN, FEW) == 1
    assert "did not come to its end" in capsys.readouterr().out
