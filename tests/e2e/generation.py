#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""generation.py CASE...: generates the prompts of golden cases, and compares
with transformers.

Each case is compiled with slots for `--slots` rows and with small chunks of
prompts. The prompts of generate.safetensors run at the same time, without and
with the adapter, on 1 to 3 ranks. Greedy tokens must be equal, and the logits
of the first and last token within golden_case.LOGITS. The same prompts, sampled
in another order, alone and on other numbers of ranks, must give the same
tokens. Their log-probabilities must be those of
the training forward. With --bf16, only this is compared.

Cases with plain LoRA are also compiled without entries of training and with
space for two adapters: the case's, and the same one with a larger rank. Rows of
one batch choose the base or an adapter.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

import golden_case
import goldens
import safetensors_io
from golden_case import Failure, check

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.append(os.path.join(ROOT, "tools/qlora-data"))
from qlora_data import engine  # noqa: E402
from qlora_data.errors import DataError  # noqa: E402

GOLDENS = os.path.join(ROOT, "tests/Inputs/goldens")
CAPACITY = 72  # the longest prompt has 40 tokens, an answer 24
# Log-probabilities of the sampler and of the training forward.
LOG_PROBS, LOG_PROBS_BF16 = 1e-5, 2e-2


class Engine:
    """Running `qlora-run --generate`, on one or several ranks."""

    def __init__(self, command, log, environment, ranks=1):
        # The log gets what the ranks write to stderr.
        command = ["sh", "-c", 'exec "$@" 2>>"$0"', log, *command]
        if environment:
            command = ["env", *(f"{name}={value}" for name, value
                                in environment.items()), *command]
        self.log = log
        try:
            self.ranks = engine.Engine(command, ranks)
        except DataError as error:
            raise self.failure(error)
        self.adapters = self.ranks.adapters
        self.vocabulary = self.ranks.vocabulary

    def failure(self, error):
        with open(self.log) as file:
            return Failure(f"{error}\n{file.read()}")

    def generate(self, requests):
        """Returns the answers of requests {"id": ..., ...}, by id."""
        answers = {request["id"]: [] for request in requests}
        left = len(requests)
        try:
            for request in requests:
                self.ranks.send(request)
            while left:
                line = self.ranks.receive()
                if "error" in line:
                    raise Failure(str(line))
                answers[line["id"]].append(line)
                left -= "finish" in line
        except DataError as error:
            raise self.failure(error)
        return answers

    def close(self):
        try:
            self.ranks.__exit__(None)
        except DataError as error:
            raise self.failure(error)


def capacity_of(case):
    """Returns the tokens of a slot: at most as many as learned positions."""
    with open(os.path.join(case, "model", "config.json")) as file:
        return min(CAPACITY, json.load(file).get("n_positions", CAPACITY))


def same_angles(case, row, length):
    """Returns the indices of the answer's tokens that have the same RoPE in a
    row of `length` tokens as when they were sampled: LongRoPE has other
    frequencies for rows of more than the original length."""
    with open(os.path.join(case, "model", "config.json")) as file:
        config = json.load(file)
    original = config.get("original_max_position_embeddings", length)
    tokens, log_probs = row
    return [at for at in range(len(tokens) - len(log_probs), len(tokens))
            if (at > original) == (length > original)]


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def compare(golden, side, answers, count, errors, first=0):
    """`first`: id of the answer to prompt 0."""
    for number in range(count):
        answer = answers[first + number]
        tokens = [line["token"] for line in answer]
        expected = golden[f"{side}.tokens.{number}"].tolist()
        if tokens != expected:
            raise Failure(f"prompt {number}, {side}: {tokens}\n"
                          f"expected {expected}")
        for place, line in (("first", answer[0]), ("last", answer[-1])):
            logits = golden[f"{side}.{place}_logits.{number}"]
            got = np.empty(len(logits))
            for token, value in line["logprobs"][1:]:
                got[token] = value
            check(errors, f"{place} logits",
                  np.abs(got - log_softmax(logits)).max(), golden_case.LOGITS)


def requests_of(golden, count, new_tokens, **options):
    return [{"id": number, "input_ids": golden[f"prompt.{number}"].tolist(),
             "max_new_tokens": new_tokens, **options}
            for number in range(count)]


def check_sampling(running, golden, count):
    """Rows that are sampled together and alone must be equal. Returns their
    tokens, and the log-probabilities of the answers' tokens."""
    rows = requests_of(golden, count, 24, temperature=1.3, top_k=50, top_p=0.95,
                       repetition_penalty=1.1, seed=5, logprobs=1)
    tokens = [[line["token"] for line in running.generate([row])[row["id"]]]
              for row in rows]
    together = running.generate(rows[::-1] + [
        {**row, "id": row["id"] + count} for row in rows])
    for number in range(2 * count):
        got = [line["token"] for line in together[number]]
        if got != tokens[number % count]:
            raise Failure(f"prompt {number % count} alone: "
                          f"{tokens[number % count]}, with others: {got}")
    return [(row["input_ids"] + tokens[row["id"]],
             [line["logprobs"][0][1] for line in together[row["id"]]])
            for row in rows]


def check_scores(running, case, rows, errors, is_cuda):
    """Scores of the rows as prompts must be those of the sampled answers. On a
    CPU, a row alone must have the same bits."""
    requests = [{"id": number, "input_ids": ids, "prompt_logprobs": True,
                 "max_new_tokens": 0} for number, (ids, _) in enumerate(rows)]
    scored = running.generate(requests)
    if not is_cuda and running.generate(requests[-1:])[len(rows) - 1] != (
            scored[len(rows) - 1]):
        raise Failure(f"row {len(rows) - 1} has other scores alone")
    for number, (ids, expected) in enumerate(rows):
        scores = scored[number][0]["prompt_logprobs"]
        if scores[0] is not None or [
                score[0][0] for score in scores[1:]] != ids[1:]:
            raise Failure(f"row {number}: scores of other tokens")
        for at in same_angles(case, rows[number], len(ids)):
            check(errors, "scores", abs(
                scores[at][0][1] - expected[at - len(ids)]),
                golden_case.LOGITS)


def check_forward(command, case, rows, folder, environment, limit, errors):
    """The training forward must give the rows' log-probabilities."""
    length = capacity_of(case)
    ids = np.zeros((1, len(rows), length), np.int32)
    labels = np.full_like(ids, -100)
    for number, (tokens, _) in enumerate(rows):
        ids[0, number, :len(tokens)] = labels[0, number, :len(tokens)] = tokens
    data, dump = (os.path.join(folder, name) for name in ("rows", "dump"))
    safetensors_io.save(data + ".safetensors",
                        {"input_ids": ids, "labels": labels})
    golden_case.run([*command, "--train-file", data + ".safetensors",
                     "--max-steps", "1",
                     "--output-dir", os.path.join(folder, "out"),
                     "--overwrite-output-dir", "--dump", dump],
                    os.path.join(folder, "log"), environment)
    logits = safetensors_io.load(dump)["logits"].reshape(
        len(rows), length, -1)
    for number, (tokens, log_probs) in enumerate(rows):
        for at in same_angles(case, rows[number], len(tokens)):
            expected = log_softmax(logits[number, at - 1])[tokens[at]]
            check(errors, "log-probabilities",
                  abs(log_probs[at - len(tokens)] - expected), limit)


def run_side(golden, case, side, running, errors, arguments):
    """Answers the prompts with an engine, and ends it. Returns the sampled rows
    of check_sampling."""
    count = sum(name.startswith("prompt.") for name in golden)
    if not arguments.bf16:
        answers = running.generate(requests_of(
            golden, count, 24, logprobs=running.vocabulary))
        compare(golden, side, answers, count, errors)
    rows = check_sampling(running, golden, count)
    if not arguments.bf16:
        check_scores(running, case, rows, errors, arguments.target == "cuda")
    running.close()
    return rows


def plain_adapter(case):
    """Returns configuration and tensors of a case's adapter if rows can choose
    it, else None."""
    folder = os.path.join(case, "adapter_init")
    with open(os.path.join(folder, "adapter_config.json")) as file:
        config = json.load(file)
    tensors = safetensors_io.load(os.path.join(folder,
                                               "adapter_model.safetensors"))
    isPlain = not any(config.get(key) for key in (
        "use_dora", "lora_bias", "modules_to_save", "target_parameters",
        "trainable_token_indices")) and config.get("bias") == "none" and all(
        name.endswith((".lora_A.weight", ".lora_B.weight"))
        for name in tensors)
    return (config, tensors) if isPlain else None


def write_wide(config, tensors, folder, more=3):
    """Writes an adapter with the same product and a rank larger by `more`."""
    os.makedirs(folder)
    rank = config["r"]
    ratio = (rank + more) / rank
    if config.get("use_rslora"):
        ratio **= 0.5
    wide = {}
    for name, value in tensors.items():
        # Patterns have other ranks: this scale is exact for each module.
        own = value.shape[0] if ".lora_A." in name else value.shape[1]
        grown = (own + more) / own
        if config.get("use_rslora"):
            grown **= 0.5
        isA = ".lora_A." in name
        wide[name] = np.pad(value, ((0, more), (0, 0)) if isA else
                            ((0, 0), (0, more)))
        if not isA:
            wide[name] = (wide[name] * (grown / ratio)).astype(np.float32)
    config = {**config, "r": rank + more, "rank_pattern": {},
              "lora_alpha": config["lora_alpha"] * ratio,
              "alpha_pattern": {name: alpha * ratio for name, alpha in
                                (config.get("alpha_pattern") or {}).items()}}
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(config, file)
    safetensors_io.save(os.path.join(folder, "adapter_model.safetensors"), wide)


def run_choice(golden, case, commands, errors, folder):
    """Rows of one batch use the base, the adapter, and the wide adapter."""
    plain = plain_adapter(case)
    if not plain:
        return ""
    wide = os.path.join(folder, "wide")
    write_wide(*plain, wide)
    rank = max(min(value.shape) for value in plain[1].values()) + 3
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[1]
                      for name in plain[1]})
    program = os.path.join(folder, "choice.so")
    golden_case.run(commands.compile + [
        "-o", program, "--entries", "generate", "--max-loras", "2",
        "--max-lora-rank", str(rank), "--lora-target-modules",
        json.dumps(targets)], commands.log)
    running = Engine(commands.run(program) + [
        "--generate", "--model-name-or-path", os.path.join(case, "model"),
        "--adapter", "own=" + os.path.join(case, "adapter_init"),
        "--adapter", f"wide={wide}"], commands.log, commands.environment)
    if running.adapters != ["own", "wide"]:
        raise Failure(str(running.adapters))
    count = sum(name.startswith("prompt.") for name in golden)
    rows = []
    for number, adapter in enumerate((None, "own", "wide")):
        for row in requests_of(golden, count, 24, adapter=adapter,
                               logprobs=running.vocabulary):
            rows.append({**row, "id": row["id"] + number * count})
    # Neighbours in a batch have different adapters.
    answers = running.generate(sorted(rows, key=lambda row: row["id"] % count))
    for number, side in enumerate(("base", "adapter", "adapter")):
        compare(golden, side, answers, count, errors, number * count)
    running.close()
    return ", rows choose"


class Commands:
    """Commands that all programs of a case share."""

    def __init__(self, compile, run, log, environment):
        self.compile, self._run = compile, run
        self.log, self.environment = log, environment

    def run(self, program):
        return [self._run[0], program, *self._run[1:]]


def run_case(name, arguments, folder):
    is_cuda = arguments.target == "cuda"
    environment = goldens.cuda_environment(arguments, 1) if is_cuda else None
    case = os.path.join(GOLDENS, name)
    golden = safetensors_io.load(os.path.join(case, "generate.safetensors"))
    count = sum(name.startswith("prompt.") for name in golden)
    log = os.path.join(folder, "log")
    tool = lambda program: os.path.join(arguments.tools, program)
    model = os.path.join(folder, "model.mlir")
    program = os.path.join(folder, "train.so")
    golden_case.run([tool("qlora-import"), os.path.join(case, "model"), "-o",
                     model], log)
    commands = Commands(
        [tool("qloracc"), model, "--config", os.path.join(case, "train.yaml"),
         "--generation-batch", str(arguments.slots), "--generation-length",
         str(capacity_of(case)), "--prefill-chunk-size", str(arguments.chunk),
         *(goldens.cuda_flags() if is_cuda else []), *arguments.compile_flag],
        [tool("qlora-run"), "--base-cache", "none", *arguments.run_flag],
        log, environment)
    shape = ["--per-device-train-batch-size", str(count), "--max-length",
             str(capacity_of(case))]
    if arguments.bf16:
        shape += ["--compute-dtype", "bfloat16"]
    golden_case.run(commands.compile + ["-o", program, *shape], log)
    errors = {}
    for side, adapter in (("base", ""), ("adapter", None)):
        command = commands.run(program) + [
            "--config", os.path.join(case, "train.yaml"), *shape]
        if adapter is not None:
            command += ["--adapter-name-or-path", adapter]
        runs = [run_side(golden, case, side, Engine(
            [*command, "--generate"], log, environment, ranks), errors,
            arguments) for ranks in (1, 2, 3)]
        rows = runs[0]
        samples = [[tokens for tokens, _ in run] for run in runs]
        if samples != samples[:1] * 3:
            raise Failure(f"other samples on several ranks: {samples}")
        check_forward(command, case, rows, folder, environment,
                      LOG_PROBS_BF16 if arguments.bf16 else LOG_PROBS, errors)
    choice = "" if arguments.bf16 else run_choice(golden, case, commands,
                                                  errors, folder)
    worst = ", ".join(f"{what} {value:.1e}"
                      for what, (_, value) in errors.items())
    if any(ratio > 1 for ratio, _ in errors.values()):
        raise Failure(worst)
    print(f"{name:20} {worst}{choice}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tools", default=os.path.join(ROOT, "build/bin"))
    parser.add_argument("--target", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--library-path", help="of a GPU's libraries; without "
                        "it, the software platform runs CUDA programs")
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--bf16", action="store_true", help="compute in bf16")
    parser.add_argument("--compile-flag", action="append", default=[])
    parser.add_argument("--run-flag", action="append", default=[])
    arguments = parser.parse_args()
    names = arguments.cases or sorted(
        name for name in os.listdir(GOLDENS)
        if os.path.exists(os.path.join(GOLDENS, name, "generate.safetensors")))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_case(name, arguments, folder)
            except Failure as failure:
                raise SystemExit(f"{name}: {failure}")


if __name__ == "__main__":
    main()
