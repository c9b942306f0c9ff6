#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# From a clean clone to a trained adapter: installs what is missing, builds into
# build/, then trains the demo on 2 CPU ranks.
set -euo pipefail
cd "$(dirname "$0")"

scripts/install.sh
scripts/build.sh qlora qlora-import qloracc qlora-run
export PATH="$PWD/.venv/bin:$PWD/build/bin:$PATH"

demo=examples/demo
out=out/demo
qlora train "$demo/train.yaml" --target cpu --gpus 2 \
  --output-dir "$out/adapter" --overwrite-output-dir

python3 - "$out/adapter/metrics.jsonl" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
match = [row["eval_exact_match"] for row in rows if "eval_exact_match" in row]
print(f"\nunseen rows with all tokens correct: "
      f"{100 * match[0]:.1f} % before, {100 * match[-1]:.1f} % after")
PYTHON
cat <<TEXT
adapter: $PWD/$out/adapter

Next:
  your own model   "Your own model" in README.md: a model to download, data and
                   train.yaml
  another run      build/bin/qlora train $demo/train.yaml --target cpu \\
                       --gpus 2 --learning-rate 2e-3 --output-dir $out/slower
  the memory plan  build/bin/qlora plan $demo/train.yaml --target cpu --gpus 8
  the three steps  build/bin/qlora train $demo/train.yaml --dry-run
  an error         docs/errors.md
TEXT
