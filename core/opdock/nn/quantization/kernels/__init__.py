"""Linear kernels: one file for each way to multiply."""
