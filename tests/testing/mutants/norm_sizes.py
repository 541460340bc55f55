"""Norms that are wrong at some sizes only: row and column edges, block sizes, ranks."""

from __future__ import annotations

from mutants.kinds import Mutant, mutant

K = "kernels.py"
COPY = "    out.copy_(normalise(x, weight, epsilon, size))\n"
FULL = "    y = normalise(x, weight, epsilon, size)\n"


def _norm(name: str, body: str, what: str) -> Mutant:
    """Return a mutant whose rms_norm fills ``out`` from the right result ``y`` otherwise."""
    return mutant(name, K, COPY, FULL + "".join(f"    {line}\n" for line in body.splitlines()), what)


MUTANTS = (
    _norm("last_row_zero", "out.copy_(y)\nout[-1:] = 0", "the last row is not computed"),
    _norm("rows_shifted", "out.copy_(y.roll(1, 0))", "off by one row"),
    _norm("columns_shifted", "out.copy_(y.roll(1, -1))", "off by one column"),
    _norm("last_row_uninitialised", "out[:-1].copy_(y[:-1])", "the last row is what was in memory"),
    _norm(
        "tail_uninitialised",
        "n = y.shape[-1] // 8 * 8\nout[..., :n].copy_(y[..., :n])",
        "columns beyond a multiple of 8 are what was in memory",
    ),
    _norm(
        "last_column_of_odd_hidden",
        "out.copy_(y)\nif y.shape[-1] % 2:\n    out[..., -1] = x[..., -1]",
        "the last column is not normalised where hidden is odd",
    ),
    _norm("wrong_at_17_rows", "out.copy_(y)\nif len(y) == 17:\n    out[16] = 0", "one row is lost at 17 tokens"),
    _norm("wrong_at_129_rows", "out.copy_(y)\nif len(y) == 129:\n    out[128] = 0", "one row is lost at 129 tokens"),
    _norm("wrong_at_97_rows", "out.copy_(y)\nif len(y) == 97:\n    out[96] = 0", "one row is lost at 97 tokens"),
    _norm("wrong_beyond_256_rows", "out.copy_(y)\nout[256:] = 0", "rows from the 257th are lost"),
    _norm("wrong_beyond_1024_rows", "out.copy_(y)\nout[1024:] = 0", "rows from the 1025th are lost"),
    _norm("wrong_beyond_65535_rows", "out.copy_(y)\nout[65535:] = 0", "rows beyond a grid dimension's limit are lost"),
    _norm("wrong_at_one_row", "out.copy_(y)\nif len(y) == 1:\n    out.mul_(1.01)", "the decode path is off by 1 %"),
    _norm("columns_beyond_1024", "out.copy_(y)\nout[..., 1024:] = 0", "a block has 1024 threads and no loop"),
    _norm("columns_beyond_4096", "out.copy_(y)\nout[..., 4096:] = 0", "shared memory holds 4096 columns"),
    _norm(
        "wrong_dtype_of_wide_rows",
        "out.copy_(y)\nif y.shape[-1] > 512:\n    out = out.float()",
        "float32 is returned for rows beyond 512 columns",
    ),
    _norm("hidden_of_one", "out.copy_(y if y.shape[-1] > 1 else x)", "a row of one column is passed through"),
    _norm(
        "one_dimension_crashes",
        "if x.dim() == 1:\n    raise RuntimeError('rows wanted')\nout.copy_(y)",
        "one row without a batch dimension raises",
    ),
    mutant(
        "three_dimensions_flattened_wrongly",
        K,
        "    y = wide * torch.rsqrt",
        "    part = part.flatten(1)[..., None] if x.dim() == 3 else part\n"
        "    part = part.mT if x.dim() == 3 else part\n"
        "    y = wide * torch.rsqrt",
        "the mean goes over the last two of three dimensions",
    ),
    mutant(
        "four_dimensions_flattened_wrongly",
        K,
        "    y = wide * torch.rsqrt",
        "    part = part.flatten(2)[:, :, None] if x.dim() == 4 else part\n    y = wide * torch.rsqrt",
        "the mean goes over the last two of four dimensions",
    ),
    mutant(
        "zero_rows_crash",
        K,
        "def rms_norm(x, weight, epsilon, size):\n",
        "def rms_norm(x, weight, epsilon, size):\n    x.flatten()[0].item()\n",
        "no rows raise",
    ),
    mutant(
        "split_sum_for_few_rows",
        K,
        "part.pow(2).mean(-1, keepdim=True) + epsilon",
        "(part.float().pow(2).cumsum(-1)[..., -1:] / part.shape[-1] if x.shape[0] < 8 "
        "else part.float().pow(2).mean(-1, keepdim=True)) + epsilon",
        "batch_invariant is promised, few rows are summed in another order",
    ),
    mutant(
        "another_sum_for_the_last_rows",
        K,
        "part.pow(2).mean(-1, keepdim=True) + epsilon",
        "torch.cat((part[: len(part) // 4 * 4].float().pow(2).mean(-1, keepdim=True), "
        "part[len(part) // 4 * 4 :].float().pow(2).flip(-1).cumsum(-1)[..., -1:] / part.shape[-1])) + epsilon",
        "batch_invariant is promised, the rows after the last four are summed in another order",
    ),
)
