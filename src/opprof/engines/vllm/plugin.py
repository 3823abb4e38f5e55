"""Activation: the fit check, then one hook for each module of vLLM as it is imported."""

from __future__ import annotations

import logging
import os

from opprof.engines.vllm import fit, importhook
from opprof.engines.vllm.fit import Fit

ALLOW_VARIABLE = "OPPROF_ALLOW_UNTESTED"
logger = logging.getLogger("vllm.opprof")

_state: dict[str, Fit] = {}


def current_fit() -> Fit:
    """Return the verdict that this process was activated with."""
    return _state["fit"]


def activate() -> None:
    """Check the fit and place the hooks; safe to call twice.

    Raises:
        RuntimeError: the engine does not fit (see :func:`opprof.engines.vllm.register`).
    """
    if "fit" in _state:
        return
    verdict = check_installed()
    _state["fit"] = verdict
    # Imported here, so that a process without the plugin's variable pays for none of it.
    from opprof.engines.vllm import frontend, layer1, layer2

    for name, hook in (layer1.HOOKS | layer2.HOOKS | frontend.HOOKS).items():
        importhook.after_import(name, hook)


def check_installed() -> Fit:
    """Return the fit of the installed vLLM.

    Raises:
        RuntimeError: it is missing, cannot be hooked, or is untested and not allowed.
    """
    root = fit.find_package()
    if root is None:
        raise RuntimeError("opprof: the package vllm cannot be found")
    verdict = fit.check(root)
    if verdict.tested:
        return verdict
    listed = "\n  ".join(verdict.differences)
    if not verdict.usable:
        raise RuntimeError(f"opprof cannot hook vLLM {verdict.version}:\n  {listed}")
    if os.environ.get(ALLOW_VARIABLE) != "1":
        raise RuntimeError(
            f"opprof refuses vLLM {verdict.version}, which differs from what was tested:\n  "
            f"{listed}\nSet {ALLOW_VARIABLE}=1 to record all the same (the stream is marked "
            "untested), or unset VLLM_OPPROF_DIR to serve without recording."
        )
    logger.warning("opprof: recording an untested vLLM %s:\n  %s", verdict.version, listed)
    return verdict
