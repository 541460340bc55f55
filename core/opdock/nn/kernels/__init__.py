"""Kernels that several vendors share, one folder for each language."""
