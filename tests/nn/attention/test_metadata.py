"""What a step says of its requests."""

from __future__ import annotations

import pytest

from opdock.errors import ConfigError
from opdock.nn.attention import AttentionMetadata, slots_of


def test_tensors_follow_from_numbers_on_the_host() -> None:
    made = AttentionMetadata.build(
        query_lens=[2, 1, 0], seq_lens=[5, 4, 3], block_tables=[[7, 1], [0], [2]], block_size=4, num_tokens=5
    )
    assert made.query_start_loc.tolist() == [0, 2, 3, 3]
    assert made.seq_lens.tolist() == [5, 4, 3]
    assert made.block_table.tolist() == [[7, 1], [0, 0], [2, 0]]
    assert made.slot_mapping.tolist() == [7 * 4 + 3, 1 * 4, 3, -1, -1]
    assert (made.num_tokens, made.max_query_len, made.max_seq_len, made.num_requests) == (5, 2, 5, 3)
    assert (made.query_lens, made.context_lens) == ((2, 1, 0), (3, 3, 3))


def test_slots_follow_the_blocks_in_their_order() -> None:
    assert slots_of([3, 0], 1, 4, 2) == [7, 0, 1]


def test_no_requests_are_a_step_too() -> None:
    made = AttentionMetadata.build(query_lens=[], seq_lens=[], block_tables=[], block_size=4)
    assert (made.num_tokens, made.num_requests, made.query_start_loc.tolist()) == (0, 0, [0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_tables": [[1]]}, "The block table of request 0 is too short"),
        ({"query_lens": [6]}, "Request 0 has 6 new tokens and 5 positions"),
        ({"num_tokens": 1}, "do not fit into num_tokens=1"),
        ({"max_blocks": 1}, "more than max_blocks=1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"query_lens": [2], "seq_lens": [5], "block_tables": [[1, 2]], "block_size": 4}
    with pytest.raises(ConfigError, match=message):
        AttentionMetadata.build(**{**given, **changes})  # type: ignore[arg-type]
