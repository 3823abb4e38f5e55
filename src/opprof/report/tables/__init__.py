"""Structs in, tables out. Every figure of the page has one of these beside it."""
