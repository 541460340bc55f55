"""Kernels in Pallas, as functions of jax arrays; ``interpret=True`` runs them on a CPU, operation by operation."""
