# SPDX-License-Identifier: MIT

"""Formats the results of bench/cpu.py as Markdown."""

import decode
import limits
import scaling

PARTS = {"limits": limits, "decode": decode, "scaling": scaling}
SHORT = {"float32": "f32", "bfloat16": "bf16"}


def verdict(is_met):
    return "met" if is_met else "missed"


def counts(row):
    """True if a row's losses were compared and are right. Otherwise its speed
    does not count."""
    return bool(row["losses"]) and all(of["is_right"]
                                       for of in row["losses"].values())


def by_mode(rates):
    return ", ".join(f"{SHORT[compute]} {rate:.1f}"
                     for compute, rate in rates.items())


def ratio_text(row):
    if row["ratio"] is None:
        return "", ""
    target = row["target_ratio"]
    is_met = counts(row) and row["ratio"] >= target
    return f"{row['ratio']:.2f}", f"{target}: {verdict(is_met)}"


def speed_table(rows):
    lines = ["| row | ours, tok/s | peer, tok/s | ratio | target | share of "
             "bound | probe, GFLOP/s: f32, bf16 | losses differ by |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ratio, target = ratio_text(row)
        failed = "; ".join(f"{SHORT[mode]}: {why}" for mode, why in
                           row["peer_failures"].items())
        probe = ", ".join(f"{rate / 1e9:.0f}" for rate in
                          row["probe"].values())
        differ = ", ".join(f"{SHORT[compute]} {of['difference']:.1g}"
                           for compute, of in (row["losses"] or {}).items())
        unit = " (labelled)" if row["unit"] == "labelled" else ""
        lines.append(
            f"| {row['name']}{unit} | {by_mode(row['ours'])} | "
            f"{by_mode(row['peer'])}{' ' if failed else ''}{failed} | {ratio} "
            f"| {target} | {row['share_of_bound']:.0%} | {probe} | "
            f"{differ or 'not compared'} |")
    return lines


def memory_table(rows):
    lines = ["| row | resident, MiB | predicted | promise | target | peer, "
             "MiB | compile cold, s | cached | start to first step, s | "
             "reading the file, s |", "|---|---|---|---|---|---|---|---|---|"
             "---|"]
    for row in rows:
        resident, seconds = row["resident"], row["compile_seconds"]
        target = resident["target"]
        target_text = (f"{target / 2**20:.0f}: "
                       f"{verdict(resident['peak'] <= target)}"
                       if target else "")
        peers = {mode: bytes_ / 2**20
                 for mode, bytes_ in row["peer_peak"].items()}
        kept = "kept" if resident["is_kept"] else "broken"
        lines.append(
            f"| {row['name']}, {SHORT[row['compute']]} | "
            f"{resident['peak'] / 2**20:.0f} | "
            f"{resident['predicted'] / 2**20:.0f} | {kept} | {target_text} | "
            f"{by_mode(peers)} | {seconds['cold']:.1f} | "
            f"{seconds['cached']:.2f} | {row['start_seconds']:.2f} | "
            f"{row['read_seconds']:.2f} |")
    return lines


def share_table(rows):
    kinds = list(dict.fromkeys(kind for row in rows
                               for kind, share in row["step"]["shares"].items()
                               if share >= 0.005))
    lines = ["| share of our step | " + " | ".join(kinds)
             + " | GEMM of probe | head of probe | outside both |",
             "|---" * (len(kinds) + 4) + "|"]
    for row in rows:
        step = row["step"]
        lines.append(
            f"| {row['name']}, {SHORT[row['compute']]} | " + " | ".join(
                f"{step['shares'].get(kind, 0):.1%}" for kind in kinds)
            + f" | {step['gemm_of_probe']:.0%} | {step['head_of_probe']:.0%}"
            + f" | {step['outside_gemm']:.0%} |")
    return lines


def text_of(results):
    """Returns Markdown for `results`, the JSON of bench/cpu.py."""
    rows = [result for name, result in results["rows"].items()
            if name not in PARTS]
    lines = [f"{results['cpu']}, {results['cores']} cores, {results['date']}; "
             "compiled for the rates of --calibrate."]
    for table in (speed_table, memory_table, share_table):
        if rows:
            lines += ["", *table(rows)]
    for name, part in PARTS.items():
        if name in results["rows"]:
            lines += ["", f"**{part.__doc__.splitlines()[0]}**", "",
                      part.text_of(results["rows"][name])]
    return "\n".join(lines) + "\n"
