# warpsac in a container, with the locked versions, as the user `warpsac`. Two targets:
#
#   docker build -t warpsac .                              CPU, the last target
#   docker build --target cuda -t warpsac:cuda .           CUDA 12: the libraries come from PyPI, the driver from the host
#
#   mkdir -p runs        # Docker would make it as root; with --user what is written there is yours
#   docker run --rm --user "$(id -u)" -v "$PWD/runs:/home/warpsac/runs" warpsac \
#     train InvertedDoublePendulum-v5 --profile demo
#   docker run --rm --user "$(id -u)" -v "$PWD/runs:/home/warpsac/runs" warpsac \
#     play runs/InvertedDoublePendulum-v5-warpsac-l-seed1
#   docker run --rm --user "$(id -u)" --gpus all -v "$PWD/runs:/home/warpsac/runs" warpsac:cuda train HalfCheetah-v4
#
# The commands of the README in it, from a checkout: docker build --target test -t warpsac:test . && docker run --rm
# warpsac:test make demo, or make test. The lists of packages are those of `make setup`; only locked wheels are installed.

ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm AS base
# What draws videos without a screen. Versions are those of the Debian release that the tag names.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 warpsac
# Every user has a home to write caches to, also one that the image does not know.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 MUJOCO_GL=egl HOME=/tmp

# The wheel is built here, with the locked setuptools, and only the wheel goes on.
FROM base AS wheel
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /source
COPY . .
RUN sed -e ':a' -e '/\\$/N; s/\\\n//; ta' requirements/cpu.txt | grep '^setuptools==' > setuptools.txt \
    && python -m pip install --require-hashes --only-binary :all: --requirement setuptools.txt \
    && python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM base AS cuda
COPY requirements/cuda.txt /tmp/lock.txt
RUN python -m pip install --no-deps --require-hashes --only-binary :all: --requirement /tmp/lock.txt
COPY --from=wheel /wheels /tmp/wheels
RUN python -m pip install --no-deps /tmp/wheels/*.whl
USER 1000
WORKDIR /home/warpsac
ENTRYPOINT ["warpsac"]
CMD ["--help"]

# A checkout with what its Makefile needs: `make demo` and `make test`.
FROM base AS test
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc git libc6-dev make && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 1000 /home/warpsac/source
USER 1000
WORKDIR /home/warpsac/source
COPY --chown=1000 . .
CMD ["make", "demo"]

# Without what only develops it, and with what writes and runs ONNX files.
FROM base AS cpu
COPY requirements/wheel.txt /tmp/lock.txt
RUN python -m pip install --no-deps --require-hashes --only-binary :all: --requirement /tmp/lock.txt
COPY --from=wheel /wheels /tmp/wheels
RUN python -m pip install --no-deps /tmp/wheels/*.whl
USER 1000
WORKDIR /home/warpsac
ENTRYPOINT ["warpsac"]
CMD ["--help"]
