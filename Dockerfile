# gguflow serve. For NVIDIA GPUs: --build-arg EXTRA=serve,cuda13 (or serve,cuda12), and run with --gpus all;
# kernels are compiled by NVRTC, which comes with the extra, so no CUDA image is needed.
FROM python:3.12-slim AS build
# Debian's mirrors keep no old versions that could be pinned.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ cmake ninja-build && rm -rf /var/lib/apt/lists/*
COPY . /src
ARG EXTRA=serve
RUN python -m venv /opt/gguflow && /opt/gguflow/bin/pip install --no-cache-dir "/src[${EXTRA}]"

FROM python:3.12-slim
COPY --from=build /opt/gguflow /opt/gguflow
RUN useradd --create-home --uid 10001 gguflow
USER 10001
ENV PATH=/opt/gguflow/bin:$PATH PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 8080
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gguflow", "serve", "--host", "0.0.0.0"]
