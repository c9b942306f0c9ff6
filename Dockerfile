# SPDX-License-Identifier: MIT

# An image with qlora, its compiler and its Python packages:
#
#   scripts/wheel.sh build/wheel
#   docker build -t qlora .
#   docker run --rm -v "$PWD:/work" qlora train MODEL_DIR data.jsonl
#
# For NVIDIA's GPUs, add `--build-arg EXTRAS=cuda,hub,parquet,serve` to the
# second line and `--gpus all` to the third.
FROM debian:12-slim
ARG EXTRAS=hub,parquet,serve
# nvcc needs g++.
RUN apt-get update && \
    case ",$EXTRAS," in *,cuda,*) gxx=g++ ;; *) gxx= ;; esac && \
    apt-get install -y --no-install-recommends python3-venv $gxx && \
    rm -rf /var/lib/apt/lists/*
COPY build/wheel/qlora-*.whl /tmp/
RUN python3 -m venv /opt/qlora && \
    /opt/qlora/bin/pip install --no-cache-dir \
    "$(ls /tmp/qlora-*.whl)[$EXTRAS]" && \
    rm /tmp/qlora-*.whl
ENV PATH=/opt/qlora/bin:/usr/local/bin:/usr/bin:/bin
WORKDIR /work
ENTRYPOINT ["qlora"]
