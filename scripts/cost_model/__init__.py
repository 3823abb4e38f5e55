"""How the embedded engine's cost model is fitted; ``scripts/fit_cost_model.py`` is the command."""
