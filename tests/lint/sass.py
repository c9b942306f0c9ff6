#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""sass.py REPOSITORY TOOLS CACHE: checks what memory-bound kernels cost on
sm_90.

Compiles the hand-written units and the generated kernels of real programs with
nvcc and the flags of qloracc, disassembles the machine code (sass_paths.py),
and fails if a kernel

  * executes over 5 instructions of a lane for each byte that it moves: at 6.3
    an H200's schedulers (132 x 128 lanes at 1.785 GHz) are as busy as its
    memory (4.8 TB/s), and a kernel needs a margin to reach either;
  * spills registers;
  * leaves over half of a multiprocessor's 2048 threads empty because of its
    registers or shared memory: too few loads are in flight then.

A kernel's bodies are the iterations of its loops, and the code outside of
loops. These bodies count: a loop, if it moves at least half as many bytes as
the largest loop; in generated kernels, which have no slow paths for odd sizes,
every loop except remainders of unrolled loops; and the code outside of loops,
if it moves as much as two iterations. A kernel with another bound is in EXEMPT
with the reason.

Before that, the lint checks itself with good and bad kernels (OWN), and fails
if it does not tell them apart. Results are cached in the folder CACHE, keyed by
the hash of all sources and tools. `--table` prints every kernel and caches
nothing.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import sass_paths

FLAGS = ["-std=c++20", "-O3", "-arch=sm_90", "-cubin", "-Xptxas", "-v"]
DEVICE = "runtime/Kernels/Cuda/Device"
BAR, OCCUPANCY = 5.0, 0.5

# Device units without memory-bound kernels, each with the reason.
EXEMPT_UNITS = {
    "Attention.cu": "matrix products", "AttentionBF16.cu": "matrix products",
    "AttentionGrad.cu": "matrix products",
    "AttentionGradBF16.cu": "matrix products",
    "Quantize.cu": "runs when a model is loaded, slower than the file is read",
}
EXEMPT = {
    r"qlora_head_labelled|qlora_head_loss_sum|qlora_(clip_norm|length)_finish":
        "one block, for a few KiB",
    r"qlora_attention_reach": "a number for each token",
    r"qlora_cached_attention_(f32|bf16|f16|i8)_\w+":
        "products of each key with several queries",
    r"qlora_cache_rows_\w+_i8": "a maximum of each head of the new tokens",
    r"qlora_head_part_begin|qlora_head_merge_(rows|sum)":
        "a few numbers of each row",
    r"qlora_grouped_matmul_\w+": "matrix products",
    r"qlora_few_rows_\w+": "decodes and multiplies each number",
    r"qlora_route_grad_\w+": "a few numbers of each token",
    r"qlora_int8_matmul_\w+": "matrix products",
    r"qlora_int8_rows_\w+": "for a product of thousands of columns",
    r"qlora_decode_\w+_zeros_\w+": "a zero point off each number",
    r"qlora_adamw_8bit": "codes of two states to numbers and back",
    r"qlora_adapted_norm_\w+": "products of a low rank for each number",
    r"qlora_attention_padding_lse": "one number of each row and head",
    r"rope_table_kernel": "sines in f64, once a micro-batch for all layers",
}

LAYER = "tests/compiler/Inputs/llama-layer.mlir"
# qloracc's options for Llama 3 8B with typical settings, and with dropout,
# float32, int8 activations, or no fusion.
PROGRAMS = {
    "bf16": ["--load-in-4bit", "--max-length", "2048", "--lora-r", "16"],
    "dropout": ["--load-in-4bit", "--max-length", "2048",
                "--lora-dropout", "0.05"],
    "f32": ["--compute-dtype", "float32", "--max-length", "512"],
    "unfused": ["--load-in-4bit", "--max-length", "2048",
                "--disable-pass", "fuse-rows"],
    "int8": ["--load-in-4bit", "--max-length", "2048",
             "--activation-dtype-for-lora", "int8"],
}

Kernel = namedtuple("Kernel", "source name registers shared threads spills "
                              "bodies")


def tool(root, name):
    for path in (shutil.which(name), f"/usr/local/cuda/bin/{name}",
                 os.path.join(root, ".venv/bin", name)):
        if path and os.access(path, os.X_OK):
            return path
    sys.exit(f"no {name}: scripts/install.sh --tests installs it")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done


class Compiler:
    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.nvcc, self.nvdisasm = tool(root, "nvcc"), tool(root, "nvdisasm")

    def version(self):
        return (run([self.nvcc, "--version"]).stdout +
                run([self.nvdisasm, "--version"]).stdout)

    def kernels(self, source, path, flags):
        """Returns the kernels of one source."""
        cubin = os.path.join(self.folder, source + ".cubin")
        report = run([self.nvcc, *FLAGS, *flags, "-I" + self.root, "-o", cubin,
                      path]).stderr
        text = run([self.nvdisasm, cubin]).stdout
        threads = sass_paths.max_threads(text)
        resources = {name: (int(spills), int(registers), int(shared or 0))
                     for name, spills, registers, shared in re.findall(
                         r"Compiling entry function '(\w+)'.*?(\d+) bytes "
                         r"spill stores.*?Used (\d+) registers(?:[^\n]*?(\d+) "
                         r"bytes smem)?", report, re.S)}
        found = []
        for name, function in sass_paths.functions(text).items():
            spills, registers, shared = resources[name]
            found.append(Kernel(source, name, registers, shared, threads[name],
                                spills + function.spills, function.bodies()))
        if not found:
            sys.exit(f"{path}: no kernel in its image")
        return found


def occupancy(kernel):
    """Returns the fraction of a multiprocessor's threads that a kernel can use
    at once. Registers: 64 K in four parts, in units of 256 per warp. Shared
    memory: 228 KiB; a block takes 1 KiB more than it requests."""
    of_warp = -(-kernel.registers // 8) * 8 * 32
    warps = kernel.threads // 32
    blocks = min(16384 // of_warp * 4 // warps, 64 // warps, 32,
                 (228 << 10) // (kernel.shared + 1024))
    return blocks * warps / 64


def judged(kernel):
    largest = max((body.bytes for body in kernel.bodies if body.is_loop),
                  default=0)

    def is_judged(body):
        if not body.is_loop:
            return body.bytes >= 2 * largest
        if 2 * body.bytes >= largest:
            return True
        # The remainder of an unrolled loop moves a half, a quarter or an eighth
        # of the bytes that an iteration of the unrolled loop moves.
        return kernel.source in PROGRAMS and not any(
            other.bytes in (body.bytes * 2, body.bytes * 4, body.bytes * 8)
            for other in kernel.bodies if other.is_loop)

    return [body for body in kernel.bodies if is_judged(body)]


def cost(kernel):
    """Returns the maximum, over the bodies of the kernel that count, of
    instructions per byte."""
    return max((body.instructions / body.bytes for body in judged(kernel)),
               default=0)


def complaints(kernel):
    name, errors = f"{kernel.source}: {kernel.name}", []
    if not kernel.bodies:
        errors.append(f"{name} accesses no global memory")
    for body in judged(kernel):
        if body.instructions > BAR * body.bytes:
            errors.append(
                f"{name}: {body.instructions} instructions for {body.bytes} "
                f"bytes in {'a turn of a loop' if body.is_loop else 'a thread'}"
                f", {body.instructions / body.bytes:.1f} a byte; the bar is "
                f"{BAR:.0f}")
    if kernel.spills:
        errors.append(f"{name} spills registers")
    if occupancy(kernel) < OCCUPANCY:
        errors.append(f"{name}: {kernel.registers} registers and "
                      f"{kernel.shared} bytes of shared memory leave room for "
                      f"{occupancy(kernel):.0%} of the threads")
    return errors


# Kernels for the self-test of this lint, each with words of the expected error.
OWN = {
    "copy_loop": "", "copy_unrolled": "", "busy_loop": "a byte",
    "busy_once": "a byte", "busy_inner": "a byte", "narrow": "a byte",
    "spilled": "spills", "crowded": "of the threads",
}
OWN_TEXT = r"""
struct alignas(16) four { float x[4]; };
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
__device__ float busy(float x, float y, int turns) {
  #pragma unroll
  for (int i = 0; i < turns; ++i) x = x * y + float(i);
  return x;
}
KERNEL(256) copy_loop(four *to, const four *from, int n) {
  for (int i = threadIdx.x; i < n; i += 256) to[i] = from[i];
}
KERNEL(256) copy_unrolled(four *to, const four *from) {
  #pragma unroll
  for (int i = 0; i < 16; ++i) to[i * 256 + threadIdx.x] = from[i * 256 + threadIdx.x];
}
KERNEL(256) busy_loop(four *to, const four *from, float y, int n) {
  for (int i = threadIdx.x; i < n; i += 256)
    for (int k = 0; k < 4; ++k) to[i].x[k] = busy(from[i].x[k], y, 60);
}
KERNEL(256) busy_once(float *to, const float *from, float y) {
  to[threadIdx.x] = busy(from[threadIdx.x], y, 60);
}
KERNEL(256) busy_inner(float *to, const float *from, float y, int n, int m) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) {
    float x = from[i];
    #pragma unroll 1
    for (int k = 0; k < m; ++k) x = busy(x, y, 60);
    to[i] = x;
  }
}
KERNEL(256) narrow(char *to, const char *from, int n) {
  #pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) to[i] = from[i] * from[i] + 1;
}
template <int N> __device__ void turned(float *to, const float *from) {
  float x[N];
  for (int i = 0; i < N; ++i) x[i] = from[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < N; ++i) to[i * 1024 + threadIdx.x] = x[i] + x[(i * 7 + 3) % N];
}
KERNEL(1024, 2) spilled(float *to, const float *from) { turned<96>(to, from); }
KERNEL(256) crowded(float *to, const float *from) { turned<120>(to, from); }
"""


def check_itself(compiler):
    path = os.path.join(compiler.folder, "own.cu")
    with open(path, "w") as file:
        file.write(OWN_TEXT)
    kernels = {k.name: k for k in compiler.kernels("own", path, [])}
    if kernels.keys() != OWN.keys():
        sys.exit(f"the lint sees {sorted(kernels)} of {sorted(OWN)}")
    for name, wrong in OWN.items():
        found = complaints(kernels[name])
        if (not wrong and found) or not any(wrong in e for e in found or [""]):
            sys.exit(f"the lint's own kernel {name}: expected '{wrong}', got "
                     f"{found}, {kernels[name]}")
    # For a loop and an unrolled loop, the bytes found in the machine code must
    # be the bytes of the source.
    moved = {name: cost(kernels[name]) for name in OWN}
    turn = max(b.bytes for b in kernels["copy_unrolled"].bodies)
    if turn != 16 * 32 or moved["copy_loop"] > 1.5:
        sys.exit(f"the lint counts wrongly: {moved}, {turn} bytes")


def generated(root, tools, folder):
    """Generates the kernels of PROGRAMS. Returns the path and the compiler
    flags of each source."""
    texts = {}
    for name, options in PROGRAMS.items():
        text = run([os.path.join(tools, "qloracc"), os.path.join(root, LAYER),
                    "--emit=cuda", *options]).stdout
        path = os.path.join(folder, name + ".cu")
        with open(path, "w") as file:
            file.write(text)
        texts[name] = (path, ["-fmad=false"])
    return texts


def texts_hash(compiler, texts):
    digest = hashlib.sha256(compiler.version().encode())
    here = os.path.dirname(os.path.abspath(__file__))
    files = [os.path.join(here, name) for name in ("sass.py", "sass_paths.py")]
    for folder in (DEVICE, "runtime/Kernels/Math", "runtime/ABI",
                   "runtime/Kernels"):
        at = os.path.join(compiler.root, folder)
        files += [os.path.join(at, name) for name in sorted(os.listdir(at))
                  if name.endswith((".cu", ".cuh", ".h"))]
    for path in files + [path for path, _ in texts.values()]:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def exempt(name):
    return next((pattern for pattern in EXEMPT if re.fullmatch(pattern, name)),
                None)


def print_table(kernels):
    print(f"{'source':18}{'kernel':36}{'instr':>6}{'bytes':>6}{'a byte':>7}"
          f"{'regs':>5}{'threads':>8}{'there':>6}")
    for kernel in kernels:
        for body in judged(kernel):
            print(f"{kernel.source:18}{kernel.name:36}{body.instructions:6}"
                  f"{body.bytes:6}{body.instructions / body.bytes:7.2f}"
                  f"{kernel.registers:5}{kernel.threads:8}"
                  f"{occupancy(kernel):6.0%}"
                  f"{'  exempt' if exempt(kernel.name) else ''}")


def main(root, tools, cache, show=None):
    root = os.path.abspath(root)
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(root, folder)
        texts = generated(root, tools, folder)
        stamp = os.path.join(cache, texts_hash(compiler, texts))
        if os.path.exists(stamp) and not show:
            return
        check_itself(compiler)
        for unit in sorted(os.listdir(os.path.join(root, DEVICE))):
            if unit.endswith(".cu") and unit not in EXEMPT_UNITS:
                texts[unit] = (os.path.join(root, DEVICE, unit), [])
        with ThreadPoolExecutor(2) as pool:
            parts = pool.map(lambda item: compiler.kernels(
                item[0], *item[1]), texts.items())
            kernels = [kernel for part in parts for kernel in part]
    if show:
        print_table(kernels)
    errors = [error for kernel in kernels if not exempt(kernel.name)
              for error in complaints(kernel)]
    used = {exempt(kernel.name) for kernel in kernels}
    errors += [f"EXEMPT names no kernel: {pattern}" for pattern in EXEMPT
               if pattern not in used]
    errors += [f"EXEMPT_UNITS names no unit: {unit}" for unit in EXEMPT_UNITS
               if not os.path.exists(os.path.join(root, DEVICE, unit))]
    if errors:
        sys.exit("\n".join(errors))
    os.makedirs(cache, exist_ok=True)
    with open(stamp, "w") as file:
        json.dump([kernel._asdict() for kernel in kernels], file)


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--table"]
    main(*arguments, show=len(arguments) + 1 < len(sys.argv))
