"""One line for every term on which a newcomer stumbles (longer: docs/glossary.md)."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "accepted (window)": "The trace is whole: eight active steps, all joined to Layer 1, kernels "
    "present. It says nothing about how typical the window is.",
    "active step": "One of the eight engine steps that a profiler window records, "
    "ProfilerStep#2 to #9.",
    "admitted, scheduled": "When the client sent a request; when its schedule wanted it sent. "
    "The difference is the queue inside the client.",
    "breakdown representative": "The profiled steps resemble the adjacent clean segment "
    "(the SMD gate).",
    "C00": "The reference server configuration: vLLM's defaults on one GPU.",
    "cell": "One pattern under one server configuration.",
    "clean segment, clean union": "Time in which nothing is profiled and everything is measured; "
    "the union is all of it together.",
    "CV_moe": "Coefficient of variation of MoE GEMM time over the layers of one step.",
    "drain": "After the last admission: waiting for outstanding requests. In no figure.",
    "drain-quarantined": "The drain took longer than allowed; the clean data stay usable, flagged.",
    "E_token": "Useful tokens (prefill and decode) per millisecond of clean step duration.",
    "family": "A class of GPU kernels by what they compute: attention, MoE GEMM and so on.",
    "FULL, PIECEWISE, NONE": "How a step ran: one whole CUDA graph, graphs between the attention "
    "layers, or eagerly without graphs.",
    "graph miss": "A step that ran without a captured CUDA graph; eligible when a bucket existed, "
    "overflow when every bucket was too small.",
    "I_mix": "How much slower steps that mix prefill and decode are than their parts predict.",
    "inversion": "One family leads another under one pattern and trails it under a second, by the "
    "protocol's margin in both windows of each, and a permutation test agrees.",
    "Kendall's tau-b": "Agreement of two rankings, from −1 (reversed) to 1 (equal), ties "
    "considered. Descriptive only.",
    "kernel time": "Sum of GPU kernel durations of the active steps. Streams overlap, so a share "
    "is a composition and not a part of wall time.",
    "Layer 1, Layer 2": "One record per engine step, always on; short profiler traces of kernels.",
    "moderate, saturation": "Offered at a fixed fraction of the saturated rate; as fast as a fixed "
    "number of outstanding requests allows.",
    "not evaluable": "The input of a gate is absent, or no protocol is bound: neither pass nor "
    "fail.",
    "padding": "Tokens that a CUDA graph's fixed bucket computes for nobody.",
    "pattern": "A traffic shape: input and output lengths, arrivals, prefix sharing (P01 to P11).",
    "pp": "Percentage points: the difference of two shares.",
    "prologue": "Kernels of earlier steps, still running when the window opens. In no share.",
    "R64": "Padding that rectangular batches of 64 requests in arrival order would need.",
    "red flag": "Numbers that cannot be true: reported first, and nothing is concluded from them.",
    "SMD": "Standardised mean difference: the shift of a mean in units of pooled standard "
    "deviation.",
    "step duration": "Completion minus the later of submission and every earlier completion.",
    "TPOT": "Time per output token after the first.",
    "TTFT": "Time to first token.",
    "window": "One short profiler recording; a load point has two, apart in time.",
}
