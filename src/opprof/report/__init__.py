"""One HTML file of analysed runs that opens offline (extra ``report``: plotly, Jinja2)."""

from opprof.report.inputs import ReportInput, RunView
from opprof.report.render import render, write_report

__all__ = ["ReportInput", "RunView", "render", "write_report"]
