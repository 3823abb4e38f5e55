"""Command lines of the peers for ``client_load.py``; a peer that is not given is left out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench_tools import Mock

Commands = dict[str, Callable[[], list[str]]]


@dataclass
class Peers:
    """Where the peers are installed; each needs a tokenizer folder of its own kind."""

    vllm: str | None
    guidellm: str | None
    aiperf: str | None
    tokenizer: str | None
    folder: str

    def environment(self, client: str) -> dict[str, str] | None:
        """A peer sees neither our sources nor the network."""
        if client in ("floor", "opprof"):
            return None
        # aiperf refuses a local tokenizer folder when the hub is switched off.
        dropped = {"PYTHONPATH", "HF_HUB_OFFLINE"} if client == "aiperf" else {"PYTHONPATH"}
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        return {**kept, "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}

    def closed(self, mock: Mock) -> Commands:
        """256 outstanding, 64 output tokens, 128 prompt tokens."""
        commands: Commands = {}
        if self.vllm:
            flags = ["--max-concurrency", "256", "--request-rate", "inf"]
            commands["vllm"] = lambda: self._vllm(mock, 128, 64, 3000, *flags)
        if self.guidellm:
            profile = "kind=concurrent,streams=256"
            commands["guidellm"] = lambda: self._guidellm(mock, 128, 64, profile, 15)
        if self.aiperf:
            load = ["--concurrency", "256", "--request-count", "1500"]
            commands["aiperf"] = lambda: self._aiperf(mock, 128, 64, *load)
        return commands

    def rate(self, mock: Mock) -> Commands:
        """100 requests/s, evenly spaced, 16 output tokens."""
        commands: Commands = {}
        if self.vllm:
            flags = ["--request-rate", "100", "--burstiness", "inf"]
            commands["vllm"] = lambda: self._vllm(mock, 128, 16, 2000, *flags)
        if self.guidellm:
            constant = "kind=constant,rate=100"
            commands["guidellm"] = lambda: self._guidellm(mock, 128, 16, constant, 20)
        if self.aiperf:
            load = ["--request-rate", "100", "--request-rate-mode", "constant"]
            load += ["--request-count", "2000"]
            commands["aiperf"] = lambda: self._aiperf(mock, 128, 16, *load)
        return commands

    def start(self, mock: Mock) -> Commands:
        """2,000 prompts of 1,280 tokens; only the time to the first matters."""
        commands: Commands = {}
        if self.vllm:
            flags = ["--max-concurrency", "256", "--request-rate", "inf"]
            commands["vllm"] = lambda: self._vllm(mock, 1280, 4, 2000, *flags)
        return commands

    def _vllm(self, mock: Mock, prompt: int, output: int, count: int, *flags: str) -> list[str]:
        assert self.vllm is not None and self.tokenizer is not None
        # The CPU build has another distribution name, so its own `vllm` command does not start.
        entry = (
            "from vllm.benchmarks.serve import add_cli_args, main;"
            "from vllm.utils.argparse_utils import FlexibleArgumentParser as P;"
            "p = P(); add_cli_args(p); main(p.parse_args())"
        )
        return [
            *[self.vllm, "-c", entry, "--backend", "openai"],
            *["--base-url", mock.url, "--endpoint", "/v1/completions", "--model", "mock"],
            *["--tokenizer", self.tokenizer, "--dataset-name", "random", "--ignore-eos"],
            *["--random-input-len", str(prompt), "--random-output-len", str(output)],
            *["--num-prompts", str(count), "--seed", "1", "--temperature", "0", *flags],
        ]

    def _guidellm(
        self, mock: Mock, prompt: int, output: int, profile: str, seconds: int
    ) -> list[str]:
        assert self.guidellm is not None and self.tokenizer is not None
        backend = f"kind=openai_http,target={mock.url},model=mock,request_format=/v1/completions"
        data = f"kind=synthetic_text,prompt_tokens={prompt},output_tokens={output}"
        return [
            *[self.guidellm, "run", "--backend", backend, "--profile", profile, "--data", data],
            *["--constraint", f"kind=max_duration,seconds={seconds}", "--disable-console"],
            *["--tokenizer", f"kind=huggingface_auto,model={self.tokenizer}"],
            *["--output", f"kind=json,path={self.folder}/guidellm.json"],
        ]

    def _aiperf(self, mock: Mock, prompt: int, output: int, *flags: str) -> list[str]:
        assert self.aiperf is not None and self.tokenizer is not None
        return [
            *[self.aiperf, "profile", "--model", "mock", "--url", mock.url],
            *["--endpoint-type", "completions", "--streaming", "--tokenizer", self.tokenizer],
            *["--isl", str(prompt), "--osl", str(output), "--extra-inputs", "ignore_eos:true"],
            *["--artifact-dir", str(Path(self.folder) / "aiperf"), "--ui", "none", *flags],
        ]
