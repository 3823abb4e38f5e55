"""Resampling, multiplicity, bounds and robust fits as a pure library: arrays in, values out."""
