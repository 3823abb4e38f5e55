"""Completed runs judged again from kept raw data: both verdicts, nothing rerun."""

from opprof.adjudication.judge import rejudge
from opprof.adjudication.write import write_adjudication

__all__ = ["rejudge", "write_adjudication"]
