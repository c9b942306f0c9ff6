#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# From a clean clone to a trained adapter: installs what is missing, builds into
# build/, trains the demo on 2 CPU ranks, and compares its answers before and
# after training.
set -euo pipefail
cd "$(dirname "$0")"

scripts/install.sh
scripts/build.sh qlora qlora-import qloracc qlora-run
export PATH="$PWD/.venv/bin:$PWD/build/bin:$PATH"

demo=examples/demo
out=out/demo
qlora train "$demo/train.yaml" --target cpu --gpus 2 \
  --output-dir "$out/adapter" --overwrite-output-dir

echo "answering unseen rows"
rm -f "$out/answers.jsonl" # else its rows would be skipped
qlora eval "$out/adapter" "$demo/data/test.jsonl" --target cpu --gpus 2 \
  --compare-base --max-rows 100 --max-new-tokens 48 \
  --output "$out/answers.jsonl" >"$out/metrics.txt"

python3 - "$demo/data/test.jsonl" "$out/answers.jsonl" <<'PYTHON'
import json, sys
rows, answers = ([json.loads(line) for line in open(path)]
                 for path in sys.argv[1:])
before, after = answers[0::2], answers[1::2]
for row, base, adapter in zip(rows[:3], before, after):
    print(f"\nprompt     {row['messages'][0]['content']}"
          f"\nreference  {row['messages'][1]['content']}"
          f"\nbefore    {base['prediction'].rstrip()}"
          f"\nafter     {adapter['prediction']}")
right = [sum(answer["exact_match"] for answer in side)
         for side in (before, after)]
print(f"\nright answers to {len(before)} unseen rows: {right[0]:.0f} before "
      f"training, {right[1]:.0f} after")
PYTHON
cat <<TEXT
adapter: $PWD/$out/adapter
answers: $PWD/$out/answers.jsonl

Next:
  your own model   "Your own model" in README.md: a model to download, data and
                   train.yaml
  the adapter      docs/chat.md, docs/serve.md, docs/export.md
  another run      build/bin/qlora train $demo/train.yaml --target cpu \\
                       --gpus 2 --learning-rate 2e-3 --output-dir $out/slower
  the memory plan  build/bin/qlora plan $demo/train.yaml --target cpu --gpus 8
  the three steps  build/bin/qlora train $demo/train.yaml --dry-run
  an error         docs/errors.md
TEXT
