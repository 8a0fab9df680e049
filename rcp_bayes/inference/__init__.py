"""Point estimates and posteriors of the models: the only modules beside `models` that load JAX."""
