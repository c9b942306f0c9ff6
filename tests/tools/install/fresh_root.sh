#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# Long forms of the install tests, which need root, Debian 12 and debootstrap.
# They make a minimal Debian 12 in FOLDER, by default a temporary folder that is
# removed at the end. Its packages come from the machine's own sources.
#
# fresh_root.sh PACKAGE.deb [FOLDER]: installs only the package. A user without
#   a Python environment trains the demo, stops it with Ctrl-C, resumes, runs
#   the other commands, and trains from YAML files of axolotl, LLaMA-Factory and
#   TRL. 0.2 GiB, and 0.9 with the package's dependencies.
# fresh_root.sh --clone [FOLDER]: with git and ca-certificates alone, clones
#   this repository's last commit and runs README's two commands in README's
#   order. 15 GiB; over an hour on two cores, less with CCACHE_DIR, the
#   machine's compiler cache.
# fresh_root.sh --image [FOLDER]: makes a wheel of build/bin, runs the lines of
#   the Dockerfile, and trains the demo. 0.7 GiB, two minutes.
set -euo pipefail
[ -n "${1:-}" ] || { grep '^# fresh_root.sh' "$0" >&2; exit 2; }

# Run in a mount namespace, so that all mounts end with this process.
[ -n "${FRESH_ROOT_MOUNTS:-}" ] ||
  FRESH_ROOT_MOUNTS=1 exec unshare --mount "$0" "$@"

here=$(realpath "$(dirname "$0")")
root=${2:-$(mktemp -d)}
remove() {
  mount --make-rprivate "$root/dev" 2>/dev/null || true
  mount --make-rprivate "$root/sys" 2>/dev/null || true
  local below
  for below in /dev /proc /sys /mnt/source /mnt/ccache ''; do
    ! mountpoint -q "$root$below" || umount -R -l "$root$below"
  done
  # Never delete folders of the machine that are still mounted here.
  if grep -q " $(realpath "$root")/" /proc/self/mounts; then
    echo "fresh_root.sh: error: $root still has mounts; remove it by hand" >&2
  elif [ -z "$kept" ]; then
    rm -rf --one-file-system "$root"
  fi
}
kept=${2:-}
trap remove EXIT

# Prints the machine's Debian 12 package sources: site, suite, component.
sources() {
  apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' \
    'Identifier: Packages' | grep -E ' bookworm(-updates|-security)? main$' |
    sort -u
}
make_root() {
  local mirror
  mirror=$(sources | awk '$2 == "bookworm" { print $1; exit }')
  [ -n "$mirror" ] || {
    echo "fresh_root.sh: error: apt knows no source of Debian 12 (bookworm)" >&2
    exit 1
  }
  [ -e "$root/etc/debian_version" ] ||
    debootstrap --variant=minbase bookworm "$root" "$mirror"
  sources | sed 's/^/deb /' >"$root/etc/apt/sources.list"
  # Tests of several machines call unshare in the chroot. It sets the
  # propagation of /, which fails unless / is a mount point.
  mount --bind "$root" "$root"
  mount --rbind --make-rslave /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc"
  chroot "$root" apt-get update -q
}
in_root() { chroot "$root" "$@"; }

try_package() { # the package
  local peers=$here/../qlora/Inputs
  cp "$1" "$root/tmp/qlora.deb"
  rm -rf "$root/tmp/peers"
  cp -r "$peers" "$root/tmp/peers"
  cp "$here/try_package.sh" "$root/tmp/try.sh"
  in_root apt-get install -qy --no-install-recommends /tmp/qlora.deb
  in_root id user >/dev/null 2>&1 || in_root useradd -m user
  in_root su user -c 'bash /tmp/try.sh'
  echo "the package alone trains, stops, and resumes to the same bytes"
}

tree=$(git -C "$here" rev-parse --show-toplevel)

# Programs in the root see only the machine's certificates, its pip settings
# and, if CCACHE_DIR is set, its compiler cache.
settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin)
share_settings() {
  local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  mkdir -p "$root/etc/ssl"
  cp "$certificates" "$root/etc/ssl/machine.crt"
  settings+=({PIP_CERT,SSL_CERT_FILE,REQUESTS_CA_BUNDLE}=/etc/ssl/machine.crt)
  [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc"
  if [ -n "${CCACHE_DIR:-}" ]; then
    mkdir -p "$root/mnt/ccache"
    mount --bind "$CCACHE_DIR" "$root/mnt/ccache"
    settings+=(CCACHE_DIR=/mnt/ccache)
  fi
}

# Clones this repository in the new root and runs README's commands there.
clone_and_run() {
  in_root apt-get install -qy --no-install-recommends git ca-certificates
  share_settings
  mkdir -p "$root/mnt/source"
  mount --bind "$tree" "$root/mnt/source"
  mount -o remount,bind,ro "$root/mnt/source"
  # Clone to the path of this repository, so that the compiler cache hits.
  rm -rf "${root:?}/$tree"
  in_root env -i "${settings[@]}" bash -euxc '
    git -c safe.directory="*" clone -q /mnt/source "$0"
    cd "$0"
    time ./quickstart.sh
    time ./test.sh
    du -sh .venv build' "$tree"
  echo "both commands pass on a fresh Debian 12"
}

# Runs the instructions of the Dockerfile in the new root, then trains.
build_image() {
  local word rest
  share_settings
  "$tree/scripts/wheel.sh" --tools "$tree/build/bin" "$root/wheel"
  while read -r word rest; do
    case $word in
    ARG | ENV) settings+=("$rest") ;;
    COPY) cp "$root"/wheel/*.whl "$root${rest##* }" ;;
    RUN) in_root env -i "${settings[@]}" sh -exc "$rest" </dev/null ;;
    FROM | WORKDIR | ENTRYPOINT) ;;
    *) echo "fresh_root.sh: error: unknown instruction $word" >&2 && exit 1 ;;
    esac
  done < <(sed '/^#/d; /^$/d' "$tree/Dockerfile" |
    sed ':a; /\\$/{N; s/\\\n//; ba}')
  cp -r "$tree/examples/demo" "$root/opt"
  in_root env -i "${settings[@]}" qlora train /opt/demo/model \
    /opt/demo/data/train.jsonl --max-steps 2 --output-dir /tmp/adapter
  du -sh "$root/opt/qlora" "$root"/wheel/*.whl
  echo "the image trains the demo"
}

if [ "$1" = --image ]; then
  make_root
  build_image
elif [ "$1" = --clone ]; then
  make_root
  clone_and_run
else
  package=$(realpath "$1")
  make_root
  try_package "$package"
fi
