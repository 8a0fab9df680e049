"""Asking a judge: reading answers, the store of attempts, the client and the loop over phases."""
