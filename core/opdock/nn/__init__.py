"""The model side: layers that platforms replace, decoders, checkpoints and generation.

The host imports nothing of it.
"""
