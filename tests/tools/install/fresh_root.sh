#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# fresh_root.sh PACKAGE.deb [FOLDER]: as root, makes a minimal Debian 12 in
# FOLDER (default: a temporary one that goes in the end; 0.2 GiB, and 0.9 with
# what the package needs), installs the package alone, and there, as a user
# without an environment, trains the demo, stops it with Ctrl-C, goes on,
# compares, takes a YAML file of each peer, and asks for what else there is. The
# long form of test_install.py.
set -euo pipefail
package=$(realpath "$1")
peers=$(realpath "$(dirname "$0")/../qlora/Inputs")
root=${2:-$(mktemp -d)}
[ -n "${2:-}" ] || trap 'rm -rf --one-file-system "$root"' EXIT
mirror=http://deb.debian.org

[ -e "$root/etc/debian_version" ] ||
  debootstrap --variant=minbase bookworm "$root" $mirror/debian
cat > "$root/etc/apt/sources.list" <<TEXT
deb $mirror/debian bookworm main
deb $mirror/debian bookworm-updates main
deb $mirror/debian-security bookworm-security main
TEXT
trap 'umount -l "$root/proc" "$root/dev" || true
      [ -n "${2:-}" ] || rm -rf --one-file-system "$root"' EXIT
mountpoint -q "$root/dev" || mount --rbind --make-rslave /dev "$root/dev"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
cp "$package" "$root/tmp/qlora.deb"
rm -rf "$root/tmp/peers"
cp -r "$peers" "$root/tmp/peers"
chroot "$root" apt-get update -q
chroot "$root" apt-get install -qy --no-install-recommends /tmp/qlora.deb
chroot "$root" id user >/dev/null 2>&1 || chroot "$root" useradd -m user

cat > "$root/tmp/try.sh" <<'TEXT'
set -eux
cd
rm -rf demo whole stopped log peers
cp -r /usr/share/qlora/examples/demo demo
qlora info
qlora train demo/train.yaml --output-dir whole
# Without job control a shell's child in the background ignores SIGINT.
set -m
qlora train demo/train.yaml --output-dir stopped > log & train=$!
until grep -q ' 20/' log; do sleep 0.2; done
kill -INT $train
wait $train || [ $? -eq 130 ]
qlora train demo/train.yaml --output-dir stopped --resume-from-checkpoint latest
cmp whole/adapter_model.safetensors stopped/adapter_model.safetensors
qlora compare whole stopped
for peer in axolotl llama-factory trl; do
  # The model and the data are where these files look for them.
  mkdir -p peers/1/2/3/4
  ln -sfn /usr/share/qlora/examples peers/examples
  cp -r /tmp/peers/. peers/1/2/3/4
  qlora train peers/1/2/3/4/$peer.yaml --output-dir $peer --overwrite-output-dir
done
qlora plan demo/train.yaml --gpus 8
qlora memory demo/model --max-length 64
qlora report stopped
TEXT
chroot "$root" su user -c 'bash /tmp/try.sh'
echo "the package alone trains, stops, and goes on to the same bytes"
