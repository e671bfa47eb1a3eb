"""`gguflow devices`: what this machine can run models on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .errors import OK

SUMMARY = "list the devices and instruction sets that can be used"


def add_arguments(p: ArgumentParser) -> None:
    """None beside the common ones."""


def run(args: Namespace) -> int:
    from gguflow.engine.backends.cpu import default_threads, load_library, runnable_isas
    from gguflow.engine.profile.machine import machine_name

    used = load_library().isa
    isas = ", ".join(f"{isa} (in use)" if isa == used else isa for isa in runnable_isas())
    print(f"cpu    {machine_name()}, {default_threads()} threads; kernels: {isas}")
    print("numpy  reference implementations, for what a device lacks")
    return OK
