# syntax=docker/dockerfile:1
# linprobe with its extra `extract` in a container, for a CPU or for an NVIDIA GPU:
#
#   docker build -t linprobe .
#   docker build -t linprobe:cuda --build-arg TORCH=cu130 .
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" linprobe train --method adamix --eps 3
#   docker run --rm --gpus all -v "$PWD:/data" linprobe:cuda train features.h5 --device cuda --eps 3 --public-shots 2

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
# Debian keeps one version of a package in a release, so a pinned one would disappear.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY docs/man docs/man
COPY linprobe linprobe
ENV LINPROBE_REQUIRE_KERNEL=1
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm
# A name of PyTorch's package index: cpu, cu126, cu130, ... The CUDA libraries come with PyTorch.
ARG TORCH=cpu
# Behind a firewall, a mirror of that index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/${TORCH}
ENV PYTHONUNBUFFERED=1
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=.ci/constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --constraint /constraints.txt \
        --index-url "${TORCH_INDEX}" torch torchvision \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[extract]" \
    && python -c "from linprobe.native import LIBRARY; assert LIBRARY is not None"
# Budget books and torchvision's weights belong to the caller: keep them in the mounted folder.
ENV HOME=/data XDG_STATE_HOME=/data/.state TORCH_HOME=/data/.torch
WORKDIR /data
RUN useradd --uid 1000 --no-create-home --home-dir /data linprobe && chown linprobe /data
USER 1000
ENTRYPOINT ["linprobe"]
CMD ["--help"]
