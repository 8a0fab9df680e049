"""Bayesian calibration of LLM relevance judgments."""

__version__ = "0.1.0"
