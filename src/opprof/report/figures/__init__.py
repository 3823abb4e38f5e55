"""Structs in, plotly dictionaries out. Nothing here imports plotly or knows the page's colours."""
