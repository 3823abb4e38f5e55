"""A decision on the page: verdict, criteria, comparisons, windows, active steps, artefacts."""
