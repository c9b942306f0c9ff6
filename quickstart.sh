#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# From a clean clone to a trained adapter: installs what is missing, builds
# into build/, then imports, compiles and trains the demo on 2 CPU ranks.
set -euo pipefail
cd "$(dirname "$0")"

scripts/install.sh
scripts/build.sh qlora-import qloracc qlora-run
export PATH="$PWD/.venv/bin:$PWD/build/bin:$PATH"

demo=examples/demo
out=out/demo
mkdir -p "$out"
echo "== import"
qlora-import "$demo/model" -o "$out/model.mlir"
echo "== compile"
qloracc "$out/model.mlir" -o "$out/train.so" --config "$demo/train.yaml"
echo "== train"
qlora-run "$out/train.so" --config "$demo/train.yaml" --gpus 2 \
  --output-dir "$out/adapter" --overwrite-output-dir

python3 - "$out/adapter/metrics.jsonl" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
match = [row["eval_argmax_match"] for row in rows if "eval_argmax_match" in row]
print(f"\nunseen rows with every token right: "
      f"{100 * match[0]:.1f} % before, {100 * match[-1]:.1f} % after")
PYTHON
cat <<TEXT
adapter: $PWD/$out/adapter

Next:
  your own model   "Your own model" in README.md: a model to download, data,
                   train.yaml and three commands
  another run      build/bin/qlora-run $out/train.so --gpus 2 \\
                       --config $demo/train.yaml \\
                       --learning-rate 2e-3 --output-dir $out/slower
  the memory plan  build/bin/qlora-run $out/train.so --device null --gpus 8
  the kernels      build/bin/qloracc $out/model.mlir --emit=cpp \\
                       --config $demo/train.yaml
  an error         docs/troubleshooting.md
TEXT
