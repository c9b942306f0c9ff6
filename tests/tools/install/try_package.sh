#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# fresh_root.sh runs this script as a user of the installed package. /tmp/peers
# has YAML files of axolotl, LLaMA-Factory and TRL.
set -eux
cd
rm -rf demo whole stopped log peers
cp -r /usr/share/qlora/examples/demo demo
qlora info
qlora train demo/train.yaml --output-dir whole
# Job control: without it, a background child of a shell ignores SIGINT.
set -m
qlora train demo/train.yaml --output-dir stopped > log & train=$!
until grep -q ' 20/' log; do sleep 0.2; done
kill -INT $train
wait $train || [ $? -eq 130 ]
qlora train demo/train.yaml --output-dir stopped --resume-from-checkpoint latest
cmp whole/adapter_model.safetensors stopped/adapter_model.safetensors
qlora compare whole stopped
for peer in axolotl llama-factory trl; do
  # The YAML files name the demo by a path relative to this folder.
  mkdir -p peers/1/2/3/4
  ln -sfn /usr/share/qlora/examples peers/examples
  cp -r /tmp/peers/. peers/1/2/3/4
  qlora train peers/1/2/3/4/$peer.yaml --output-dir $peer --overwrite-output-dir
done
qlora plan demo/train.yaml --gpus 8
qlora memory demo/model --max-length 64
qlora report stopped
