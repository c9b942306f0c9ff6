#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# cudnn_plans.sh [VERSION ...]: runs all tests of cuDNN's plans with each
# version of cuDNN (ctest runs only some). Takes 1 to 2 minutes per version, and
# downloads 0.5 GB for a version that is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

(($#)) || set -- 9.19.0.56 9.20.0.48 9.28.1.4
scripts/cudnn.sh "$@"
for version; do
  IFS=. read -r major minor patch _ <<<"$version"
  echo "-- cuDNN $version"
  LD_LIBRARY_PATH=build/cudnn/$version \
    QLORA_CUDNN_VERSION=$((10000 * major + 100 * minor + patch)) \
    build/bin/CudnnPlanTests
done
