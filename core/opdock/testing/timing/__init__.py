"""Timing of IR ops: each provider against the native definition, on the device of the platform.

``run.measure`` yields one ``Point`` for each op, size and dtype; ``result.Result`` holds them with the circumstances;
``plot.draw`` makes the picture. Nothing here prints.
"""
