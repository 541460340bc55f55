"""Faults that the kit lets pass: those that, once looked at, break no rule, and those that it cannot reach."""

from __future__ import annotations

REASONS = {
    "truncated_in_bfloat16": "one unit in the last place, within the op's tolerance",
    "probe_declines_silently": "the host gives a reason of its own",
    "hook_not_classmethod": "hooks are called on the platform object",
    "dispatch_key_missing": "CPU is the default",
    "priority_without_native": "the host tries native last, whatever is listed",
    "priority_of_default_only": "the host tries native last, whatever is listed",
    "priority_listed_twice": "the second one is never tried",
    "rotation_views_only": "splitting a dimension is a view, whatever the strides",
    "attention_strided_query": "splitting a dimension is a view, whatever the strides",
    "silu_takes_float16": "the kernel is right for float16 too",
    "fake_missing_of_writer": "torch needs no fake of an op that returns nothing",
    "compile_passes_none": "the host takes None for no fusions",
    "linear_weight_transposed": "names, shapes, dtypes and values are those of the in-tree layer",
    "gelu_forward_native_replaced": "forward_oot is forward_native unless it is defined, and the values are right",
}
"""Why, by name."""

OUT_OF_REACH = {
    "predicate_by_environment": "it depends on a variable whose name nobody but the package knows",
    "predicate_by_threads": "it depends on a number of threads that no run has",
    "positions_outside_are_clamped": "native raises IndexError; a kernel on a device cannot without stopping it, "
    "so the kit makes no such positions",
}
"""Why, by name: these break a rule, and count as missed."""
