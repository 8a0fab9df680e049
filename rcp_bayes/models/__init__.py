"""The NumPyro models of both stages, one a module."""
