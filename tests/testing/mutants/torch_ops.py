"""What a provider promises and the torch op behind it: results, fakes, schemas, predicates."""

from __future__ import annotations

from mutants.kinds import Mutant, mutant

K, P = "kernels.py", "providers.py"
NORM = "def rms_norm(x, weight, epsilon, size):\n"
OUT = NORM + "    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)\n"
CALL = "    return torch.ops.opdock_good.rms_norm(x, weight, epsilon, variance_size)\n"
SILU = "    return torch.ops.opdock_good.silu_and_mul(x)\n"
ADDED = "    return x, x_residual\n"
FAKE_NORM = (
    "def fake_rms_norm(x, weight, epsilon, size):\n    return torch.empty(x.shape, dtype=x.dtype, device=x.device)"
)
FAKE_SILU = "    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)\n"
FAKE_ADD = (
    '@register_fake("opdock_good::add_rms_norm_")\ndef fake_add_rms_norm_(x, residual, weight, epsilon):\n'
    "    return None\n"
)
SCHEMA = "add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()"
TAKES = "def norm_takes(x, weight, epsilon, variance_size=None):\n"


def _takes(name: str, body: str, what: str, before: str = "") -> Mutant:
    """Return a mutant whose norm_takes begins with ``body``."""
    return mutant(name, P, TAKES, before + TAKES + "".join(f"    {line}\n" for line in body.splitlines()), what)


MUTANTS = (
    mutant("result_list", P, CALL, CALL.replace("return ", "return [")[:-1] + "]\n", "a list of one tensor"),
    mutant("result_none", P, SILU, SILU.replace("return ", ""), "nothing is returned"),
    mutant("results_swapped", P, ADDED, "    return x_residual, x\n", "the two results are swapped"),
    mutant("one_result_missing", P, ADDED, "    return x\n", "one of two results"),
    mutant("residual_returned_as_copy", P, ADDED, "    return x, x_residual.clone()\n", "in place in part only"),
    mutant("result_requires_grad", P, SILU, SILU[:-1] + ".requires_grad_()\n", "the result requires a gradient"),
    mutant(
        "result_is_parameter",
        P,
        SILU,
        "    return torch.nn.Parameter(torch.ops.opdock_good.silu_and_mul(x))\n",
        "the result is a Parameter",
    ),
    mutant("result_on_another_device", P, SILU, SILU[:-1] + '.to("meta")\n', "the result is on the meta device"),
    mutant(
        "result_transposed",
        K,
        OUT,
        OUT.replace("torch.empty(x.shape,", "torch.empty(x.shape[::-1],")
        .replace(")\n", ").permute(*range(x.dim())[::-1])\n")
        .replace("size).permute(*range(x.dim())[::-1])", "size)"),
        "the result is not dense",
    ),
    mutant(
        "result_like_input",
        K,
        OUT,
        NORM + "    out = torch.empty_like(x)\n",
        "the result has the strides of a transposed input",
    ),
    mutant("result_float32", P, SILU, SILU[:-1] + ".float()\n", "float32 whatever x is"),
    mutant("result_flattened", P, CALL, CALL[:-1] + ".flatten(0, -2)\n", "three dimensions come back as two"),
    mutant("fake_dtype", K, FAKE_NORM, FAKE_NORM.replace("x.dtype", "torch.float32"), "the fake is float32"),
    mutant("fake_shape", K, FAKE_NORM, FAKE_NORM.replace("x.shape,", "x.shape[1:],"), "the fake lacks a dimension"),
    mutant(
        "fake_shape_of_odd_sizes", K, FAKE_SILU, FAKE_SILU.replace("x.shape[-1] // 2", "x.shape[-1] // 4 * 2"), "odd d"
    ),
    mutant("fake_device", K, FAKE_NORM, FAKE_NORM.replace("device=x.device", 'device="meta"'), "the fake is elsewhere"),
    mutant(
        "fake_strides", K, FAKE_NORM, FAKE_NORM.replace("torch.empty(x.shape,", "torch.empty_like(x,"), "those of x"
    ),
    mutant("fake_column_major", K, FAKE_SILU, FAKE_SILU[:-1] + ".mT.contiguous().mT\n", "the fake is column-major"),
    mutant("fake_is_the_input", K, FAKE_NORM, FAKE_NORM.partition("    return")[0] + "    return x", "the fake is x"),
    mutant(
        "fake_fixes_sizes",
        K,
        FAKE_NORM,
        FAKE_NORM.replace("x.shape,", "[int(n) for n in x.shape],"),
        "dynamic sizes become constants: one compilation for each size",
    ),
    mutant("fake_missing", K, '@register_fake("opdock_good::silu_and_mul")\n', "", "no fake"),
    mutant("fake_missing_of_writer", K, FAKE_ADD, "", "no fake of an op that returns nothing"),
    mutant("fake_returns_results", K, FAKE_ADD, FAKE_ADD.replace("return None", "return x, residual"), "two for none"),
    mutant("schema_without_writes", K, SCHEMA, SCHEMA.replace("(a!)", "").replace("(b!)", ""), "no argument is marked"),
    mutant("schema_without_residual", K, SCHEMA, SCHEMA.replace("(b!)", ""), "one of two is not marked as written"),
    mutant("schema_one_alias", K, SCHEMA, SCHEMA.replace("(b!)", "(a!)"), "two arguments are said to be one memory"),
    mutant("schema_marks_weight", K, SCHEMA, SCHEMA.replace("Tensor? weight", "Tensor(c!)? weight"), "weight written?"),
    mutant(
        "kernel_for_another_key",
        K,
        'library.impl(name, kernel, "CPU")',
        'library.impl(name, kernel, "CUDA")',
        "no kernel for the platform's dispatch key",
    ),
    mutant(
        "kernel_composite",
        K,
        'library.impl(name, kernel, "CPU")',
        'library.impl(name, kernel, "CompositeImplicitAutograd")',
        "the kernels are traced through",
    ),
    mutant(
        "inplace_not_declared",
        P,
        "supports_args=add_norm_takes, inplace=True",
        "supports_args=add_norm_takes",
        "it writes its arguments and does not say so",
    ),
    mutant(
        "inplace_declared_wrongly",
        P,
        '"good", supports_args=rotary_takes, batch_invariant=True',
        '"good", supports_args=rotary_takes, batch_invariant=True, inplace=True',
        "rotary_embedding is said to write its arguments and does not",
    ),
    _takes("predicate_reads_data", "if x.numel() and float(x.abs().max()) > 1e30:\n    return 'large'", "x is read"),
    _takes(
        "predicate_reads_weight", "if weight is not None and not bool(weight.any()):\n    return 'no weight'", "data"
    ),
    _takes("predicate_by_address", "if x.data_ptr() % 32:\n    return 'x is not aligned'", "the address decides"),
    _takes(
        "predicate_by_call_count",
        "calls.append(0)\nif len(calls) % 3 == 0:\n    return 'not now'",
        "every third call is declined",
        "calls = []\n\n\n",
    ),
    _takes(
        "predicate_by_environment", "if __import__('os').environ.get('GOOD_OFF'):\n    return 'off'", "the environment"
    ),
    _takes("predicate_by_grad_mode", "if torch.is_grad_enabled():\n    return 'gradients'", "grad mode decides"),
    _takes("predicate_by_threads", "if torch.get_num_threads() > 64:\n    return 'threads'", "threads decide"),
    _takes(
        "predicate_by_fake", "if type(x) is not torch.Tensor:\n    return 'no subclass'", "the tensor's class decides"
    ),
    _takes("predicate_never", "if x.dim() > 0:\n    return 'not yet'", "nothing is taken"),
    _takes("predicate_raises", "if x.dtype == torch.bfloat16:\n    raise NotImplementedError", "raises for bfloat16"),
    _takes("predicate_raises_without_weight", "if weight.dtype != x.dtype:\n    return 'dtypes'", "raises for None"),
    _takes("predicate_returns_nothing", "return None", "neither True nor a reason"),
    _takes("predicate_returns_tensor", "return torch.tensor(True)", "a tensor, not a bool"),
    _takes(
        "predicate_writes", "x.requires_grad_(False)\nweight is None or weight.mul_(1.001)", "the weight is written"
    ),
    _takes("predicate_fixes_sizes", "if int(x.shape[0]) > 10**6:\n    return 'rows'", "dynamic sizes become constants"),
)
