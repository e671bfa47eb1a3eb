"""Instructions of the 64-bit ARM product kernels, beside llama.cpp's, counted by an emulator.

    python bench/neon_counts.py --isa i8mm --peer /path/to/llama.cpp

prints a Markdown table: instructions for 32 elements of one row, once for a single column (a token)
and once for one column of many (a prompt). Both programs' inner kernels are cross compiled by
aarch64-linux-gnu-g++ with -O3 and run by qemu-aarch64-static one instruction at a time; what is
counted is the difference between rows of 1,024 and of 512 elements, so that calls and start-up do
not count. What turns floats into the columns, on either side, is not in it.

llama.cpp is given the kernel that it chooses on such a processor: its repacked ones where it has
them, with sixteen rows and columns, otherwise vec_dot, two by two where that exists. f16 products
go through vec_dot too; builds with llamafile's sgemm have another for prompts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT, LONG = 16, 32  # blocks of 32
FLAGS = ("-O3", "-DNDEBUG", "-static", "-ffunction-sections", "-Wl,--gc-sections")
# Their processors with these instructions also have those of float16, and of bfloat16.
ISAS = {"baseline": ("-march=armv8-a", "-march=armv8-a"),
        "dotprod": ("-march=armv8.2-a+dotprod", "-march=armv8.2-a+dotprod+fp16"),
        "i8mm": ("-march=armv8.2-a+dotprod+i8mm+fp16fml",
                 "-march=armv8.2-a+dotprod+i8mm+fp16+bf16")}  # fmt: skip
# gguflow's type number, columns at once; llama.cpp's vec_dot.
TYPES = {
    "f16": (1, "f16"), "bf16": (30, "bf16"), "q4_0": (2, "q4_0_q8_0"), "q4_1": (3, "q4_1_q8_1"),
    "q5_0": (6, "q5_0_q8_0"), "q5_1": (7, "q5_1_q8_1"), "q8_0": (8, "q8_0_q8_0"),
    "q2_K": (10, "q2_K_q8_K"), "q3_K": (11, "q3_K_q8_K"), "q4_K": (12, "q4_K_q8_K"),
    "q5_K": (13, "q5_K_q8_K"), "q6_K": (14, "q6_K_q8_K"), "iq4_nl": (20, "iq4_nl_q8_0"),
    "iq4_xs": (23, "iq4_xs_q8_K"), "mxfp4": (39, "mxfp4_q8_0"), "tq1_0": (34, "tq1_0_q8_K"),
    "tq2_0": (35, "tq2_0_q8_K"), "iq1_s": (19, "iq1_s_q8_K"), "iq1_m": (29, "iq1_m_q8_K"),
    "iq2_xxs": (16, "iq2_xxs_q8_K"), "iq2_xs": (17, "iq2_xs_q8_K"), "iq2_s": (22, "iq2_s_q8_K"),
    "iq3_xxs": (18, "iq3_xxs_q8_K"), "iq3_s": (21, "iq3_s_q8_K"),
}  # fmt: skip
# What llama.cpp repacks for (ggml_repack_get_optimal_repack_type).
REPACKED = {
    "baseline": {},
    "dotprod": {"q4_0": "q4_0_4x4_q8_0", "q8_0": "q8_0_4x4_q8_0", "q4_K": "q4_K_8x4_q8_K",
                "q5_K": "q5_K_8x4_q8_K", "q6_K": "q6_K_8x4_q8_K", "iq4_nl": "iq4_nl_4x4_q8_0",
                "mxfp4": "mxfp4_4x4_q8_0"},
    "i8mm": {"q4_0": "q4_0_4x8_q8_0", "q8_0": "q8_0_4x8_q8_0", "q4_K": "q4_K_8x8_q8_K",
             "q5_K": "q5_K_8x8_q8_K", "q6_K": "q6_K_8x8_q8_K", "iq4_nl": "iq4_nl_4x4_q8_0",
             "mxfp4": "mxfp4_4x4_q8_0"},
}  # fmt: skip


def compile_all(out: Path, flags: Sequence[str], sources: Sequence[Path]) -> None:
    """C and C++ sources to one static program."""
    objects = []
    for source in sources:
        tool, std = ("gcc", "gnu11") if source.suffix == ".c" else ("g++", "gnu++17")
        objects.append(str(out.parent / f"{out.name}-{source.stem}.o"))
        subprocess.run([f"aarch64-linux-gnu-{tool}", f"-std={std}", *FLAGS, *flags, "-c",
                        str(source), "-o", objects[-1]], check=True)  # fmt: skip
    subprocess.run(["aarch64-linux-gnu-g++", *FLAGS, "-Wl,--unresolved-symbols=ignore-all",
                    *objects, "-o", str(out)], check=True)  # fmt: skip


def build_ours(out: Path, march: str) -> None:
    cpu = ROOT / "kernels/cpu"
    names = ("mul_mat_packed_legacy", "mul_mat_packed_k", "mul_mat_packed_table", "mul_mat_grid")
    flags = (march, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
             f"-I{ROOT / 'kernels'}")  # fmt: skip
    sources = [ROOT / "bench/neon/ours.cpp", *(cpu / f"{n}.cpp" for n in names)]
    compile_all(out, flags, sources)


def build_theirs(out: Path, march: str, peer: Path) -> None:
    ggml = peer / "ggml"
    cpu = ggml / "src/ggml-cpu"
    flags = (march, "-w", f"-I{ggml / 'include'}", f"-I{ggml / 'src'}", f"-I{cpu}")
    sources = [ROOT / "bench/neon/theirs.cpp", cpu / "arch/arm/quants.c",
               cpu / "arch/arm/repack.cpp", cpu / "vec.cpp"]  # fmt: skip
    compile_all(out, flags, sources)


def executed(program: Path, *args: object) -> int:
    """Instructions the program runs; -1 when it has no such kernel."""
    command = ["qemu-aarch64-static", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D",
               "/dev/stdout", str(program), *map(str, args)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        n = sum(chunk.count(b"\n") for chunk in iter(lambda: run.stdout.read(1 << 20), b""))
    return n if run.returncode == 0 else -1


def a_block(program: Path, *args: object, each: int) -> float | None:
    """Instructions for 32 elements of a row and a column, of `each` rows times columns."""
    short, long = (executed(program, *args, n) for n in (SHORT, LONG))
    return None if min(short, long) < 0 else (long - short) / (LONG - SHORT) / each


def figures(isa: str, ours: Path, theirs: Path | None) -> Iterator[list[str]]:
    for name, (number, dot) in TYPES.items():
        columns = 128 if name in ("f16", "bf16") else 8 if isa == "baseline" else 16
        row = [a_block(ours, number, 1, each=16), a_block(ours, number, columns, each=16 * columns)]
        if theirs:
            kernel = REPACKED[isa].get(name)
            many = f"{kernel}+" if kernel else dot
            row.insert(1, a_block(theirs, kernel or dot, 16, 1, each=16))
            row.append(a_block(theirs, many, 16, 16, each=256))
        yield [name, *("" if x is None else f"{x:.1f}" for x in row)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--isa", choices=ISAS, default="i8mm")
    parser.add_argument("--peer", type=Path, help="llama.cpp's sources")
    args = parser.parse_args()
    our_march, their_march = ISAS[args.isa]
    heads = ["type", "token", "prompt"]
    if args.peer:
        heads = ["type", "token", "llama.cpp", "prompt", "llama.cpp"]
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = Path(directory) / "ours", Path(directory) / "theirs"
        build_ours(ours, our_march)
        if args.peer:
            build_theirs(theirs, their_march, args.peer)
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
        for row in figures(args.isa, ours, theirs if args.peer else None):
            print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
