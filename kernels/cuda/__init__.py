"""CUDA kernels: one `.cu` file an op or family, with the `.py` that launches it beside it.

A launch file names its ops in `OPS` and is found by being here; `launch.py` says what else it has.
Nothing in this package needs a GPU or CuPy: launches are data, and NVRTC compiles without a device.
"""
