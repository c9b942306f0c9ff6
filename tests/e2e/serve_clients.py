# SPDX-License-Identifier: MIT

"""Asks `qlora serve` with the clients that people use: the `openai` package,
and local-completions of lm-eval with tasks over a local file. Their results
must equal those of reference_llama.py. scripts/install.sh --tests installs the
clients into .venv/clients."""

import argparse
import glob
import json
import os
import subprocess
import tempfile

import numpy as np

from golden_case import Failure
from served import MODEL, ROOT, Expected, Served, questions

CLIENTS = os.path.join(ROOT, ".venv/clients/bin")
KEY = "secret"
TOLERANCE = 1e-4  # of log-probabilities, computed in float32
CHOICE = """task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc}}]
"""
ANSWER = """task: local_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 12}}
metric_list: [{{metric: exact_match}}]
"""


def client(name):
    path = os.path.join(CLIENTS, name)
    if not os.path.exists(path):
        raise Failure(f"there is no {path}; run: scripts/install.sh --tests")
    return path


def scores(expected, ids):
    """Returns the log-probability of each token but the first."""
    log_probs = expected.llama.log_probs(np.array(ids))
    return [float(log_probs[at, token]) for at, token in enumerate(ids[1:])]


def row_of(expected, prompt, answer, text, count):
    both = scores(expected, prompt + answer)
    return {"prompt": prompt, "count": count, "text": text,
            "prompt_text": expected.tokenizer.decode(
                prompt, skip_special_tokens=False),
            "prompt_tokens": len(prompt),
            "finish": "stop" if answer[-1] in expected.ends else "length",
            "prompt_log_probs": both[:len(prompt) - 1],
            "log_probs": both[len(prompt) - 1:]}


def check_openai(server, expected):
    count, chats = 12, []
    for question in questions(6):
        for found in expected.answers([expected.rendered(question)], count):
            chats.append({**row_of(expected, *found, count),
                          "question": question})
    texts = [row_of(expected, *found, count) for found in expected.answers(
        [expected.ids(text[:40]) for text in questions(9)], count)]
    texts = [row for row in texts if len(row["text"]) > 8]
    if len(chats) < 4 or len(texts) < 3:
        raise Failure("too few answers are independent of rounding")
    subprocess.run(
        [client("python"), "serve_openai.py", server.url], check=True,
        text=True, input=json.dumps({"chats": chats, "texts": texts}))


def write_tasks(folder, expected):
    """Writes tasks and their data. Returns the expected answers."""
    rows, answers = [], []
    for number, question in enumerate(questions(24)):
        # lm-eval moves spaces at the end of a question to its answer.
        begin = question[:40].rstrip()
        found = expected.answers([expected.ids(begin)], 12)
        if found:
            _, _, text = found[0]
            answers.append(text.split("\n")[0])
            rows.append({
                "question": begin, "gold": number % 3,
                # Every other answer is right.
                "answer": text.split("\n")[0] if len(rows) % 2 else "none",
                "choices": [question[len(begin):].strip(), "the farm",
                            "at nine, Lena"]})
    data = os.path.join(folder, "rows.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    for name, text in (("choice", CHOICE), ("answer", ANSWER)):
        with open(os.path.join(folder, name + ".yaml"), "w",
                  encoding="utf-8") as file:
            file.write(text.format(data=data))
    return rows, answers


def run_lm_eval(server, folder):
    """Returns the results, and the samples by task."""
    out = os.path.join(folder, "out")
    done = subprocess.run(
        [client("lm_eval"), "run", "--model", "local-completions",
         "--model_args", f"model=base,base_url={server.url}/v1/completions,"
         f"tokenizer={MODEL},tokenizer_backend=huggingface,num_concurrent=4,"
         "max_length=256,tokenized_requests=True", "--tasks",
         "local_choice,local_answer", "--include_path", folder, "--batch_size",
         "3", "--output_path", out, "--log_samples"],
        capture_output=True, text=True, cwd=folder, check=False,
        env={**os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1",
             "HF_HOME": folder, "HF_DATASETS_CACHE": folder + "/datasets",
             "CUDA_VISIBLE_DEVICES": ""})
    results = glob.glob(out + "/**/results_*.json", recursive=True)
    if done.returncode or not results:
        raise Failure(f"lm_eval exited {done.returncode}: {done.stdout}"
                      f"{done.stderr}")
    with open(results[0], encoding="utf-8") as file:
        found = json.load(file)["results"]
    samples = {}
    for task in ("choice", "answer"):
        path, = glob.glob(out + f"/**/samples_local_{task}_*.jsonl",
                          recursive=True)
        with open(path, encoding="utf-8") as file:
            samples[task] = sorted(map(json.loads, file),
                                   key=lambda row: row["doc_id"])
    return found, samples


def check_choices(expected, rows, samples, accuracy):
    """The log-likelihood of each choice must be that of the reference."""
    right = worst = 0
    for row, sample in zip(rows, samples, strict=True):
        context = expected.ids(row["question"])
        sums = []
        for choice, (found, is_greedy) in zip(
                row["choices"], (one for (one,) in sample["resps"]),
                strict=True):
            ids = expected.ids(row["question"] + " " + choice)
            log_probs = expected.llama.log_probs(np.array(ids))
            places = range(len(context) - 1, len(ids) - 1)
            sums.append(sum(log_probs[at, ids[at + 1]] for at in places))
            worst = max(worst, abs(sums[-1] - float(found)) / len(ids))
            likeliest = all(log_probs[at].argmax() == ids[at + 1]
                            for at in places)
            if str(likeliest) != str(is_greedy):
                raise Failure(f"greedy: {is_greedy} for {row}, {choice}")
        right += int(np.argmax(sums)) == row["gold"]
    if worst > TOLERANCE:
        raise Failure(f"a log-likelihood differs by {worst} for each token")
    if abs(accuracy - right / len(rows)) > 1e-9:
        raise Failure(f"accuracy {accuracy}, expected {right} of {len(rows)}")
    return worst


def check_lm_eval(server, expected, folder):
    rows, answers = write_tasks(folder, expected)
    results, samples = run_lm_eval(server, folder)
    worst = check_choices(expected, rows, samples["choice"],
                          results["local_choice"]["acc,none"])
    found = [sample["resps"][0][0] for sample in samples["answer"]]
    if found != answers:
        raise Failure(f"answers {found}, expected {answers}")
    exact = results["local_answer"]["exact_match,none"]
    if abs(exact - (len(rows) // 2) / len(rows)) > 1e-9:
        raise Failure(f"exact match {exact}, expected {len(rows) // 2} of "
                      f"{len(rows)}")
    print(f"lm_eval: {3 * len(rows)} log-likelihoods differ by at most "
          f"{worst:.1e} for each token, {len(rows)} answers are equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default=os.path.join(ROOT, "build/bin"))
    arguments = parser.parse_args()
    try:
        client("python")
        expected = Expected()
        with tempfile.TemporaryDirectory() as folder, Served(
                arguments.tools, "--served-model-name=base",
                QLORA_API_KEY=KEY) as server:
            check_openai(server, expected)
            check_lm_eval(server, expected, folder)
    except (Failure, subprocess.CalledProcessError) as failure:
        raise SystemExit(f"serve_clients: {failure}")


if __name__ == "__main__":
    main()
