"""``python -m opprof``."""

from opprof.cli import main

main()
