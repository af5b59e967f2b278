"""Cutting trace blocks, local and external hashes, and linking answers to the turns that follow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmtrie.replay.blocks import BlockMap, PlannedRequest, mix64, plan
from shmtrie.replay.trace import TraceRequest, generate_trace


def request(tokens: int, ids: list[int], output: int = 0, at: float = 0.0) -> TraceRequest:
    return TraceRequest(at, tokens, output, tuple(ids))


def hashes(blocks: BlockMap, planned: PlannedRequest) -> tuple[list[int], list[int]]:
    places = blocks.places(planned.nodes, planned.prompt_blocks)
    return blocks.local(places).tolist(), blocks.external(places).tolist()


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_mix_is_one_to_one() -> None:
    assert len(np.unique(mix64(np.arange(100_000, dtype=np.uint64)))) == 100_000


@pytest.mark.parametrize(("block_tokens", "blocks"), [(512, 2), (64, 18), (16, 75), (1, 1200)])
def test_only_full_blocks_of_the_prompt_count(block_tokens: int, blocks: int) -> None:
    load = plan([request(1200, [1, 2, 3])], block_tokens)
    assert load.requests[0].prompt_blocks == blocks
    assert len(hashes(load.blocks, load.requests[0])[0]) == blocks


def test_lengths_that_do_not_fit_the_ids() -> None:
    load = plan([request(5000, [1, 2]), request(100, [1, 2, 3]), request(0, []), request(5000, [1], 600)], 64)
    assert [r.prompt_blocks for r in load.requests] == [16, 1, 0, 8]
    assert load.requests[3].total_blocks == (512 + 600) // 64


@pytest.mark.parametrize("block_tokens", [0, -1, 3, 1024])
def test_block_size_must_divide(block_tokens: int) -> None:
    with pytest.raises(ValueError, match="must divide 512"):
        plan([request(1, [1])], block_tokens)


@pytest.mark.parametrize("block_tokens", [512, 64, 16])
def test_hashes_follow_prefixes(block_tokens: int) -> None:
    cut = 512 // block_tokens
    load = plan(
        [
            request(2048, [1, 2, 3, 4]),
            request(2048, [1, 2, 9, 4]),  # block 4 behind another prefix
            request(1536, [1, 1, 1]),
        ],
        block_tokens,
    )
    (local_a, external_a), (local_b, external_b), (local_c, external_c) = (
        hashes(load.blocks, planned) for planned in load.requests
    )
    assert common(local_a, local_b) == common(external_a, external_b) == 2 * cut
    assert local_a[3 * cut :] == local_b[3 * cut :], "same tokens, same local hash"
    assert not set(external_a[3 * cut :]) & set(external_b)
    assert local_c[:cut] == local_c[cut : 2 * cut] == local_c[2 * cut :] == local_a[:cut]
    assert len(set(external_c)) == 3 * cut
    assert len(set(local_a)) == 4 * cut


def test_a_block_cut_finer_keeps_its_boundaries() -> None:
    trace = generate_trace(200, seed=3)
    plans = {tokens: plan(trace, tokens) for tokens in (512, 64, 16)}
    for i in range(0, 180, 7):
        shared = {}
        for tokens, load in plans.items():
            a, b = (hashes(load.blocks, load.requests[j])[1] for j in (i, i + 20))
            shared[tokens] = common(a, b) * tokens
        assert shared[512] <= shared[64] <= shared[16] < shared[512] + 512


@pytest.mark.parametrize("block_tokens", [512, 64, 16])
def test_answer_gets_the_blocks_of_the_next_turn(block_tokens: int) -> None:
    first = request(1000, [1, 2], output=700)
    turn = request(2500, [1, 3, 4, 5, 6], output=10, at=1.0)
    load = plan([first, turn], block_tokens)
    mine, later = load.requests
    assert load.linked == 1
    assert mine.total_blocks == 1700 // block_tokens
    assert mine.nodes == later.nodes[: len(mine.nodes)]


def test_answer_of_its_own() -> None:
    # too short for the answer; another conversation behind the same system prompt; no full block at all
    for second in ([1200, [1, 3, 4]], [4000, [7, *range(30, 37)]]):
        load = plan([request(1000, [1, 2], output=700), request(second[0], second[1], at=1.0)])
        assert load.linked == 0
        assert not set(load.requests[0].nodes[1:]) & set(load.requests[1].nodes)
    load = plan([request(100, [1], output=700), request(2000, [2, 3, 4, 5], at=1.0)])
    assert load.linked == 0
    # The first request was the one to have the system prompt [1]: the second is not linked to the third.
    shared = [request(600, [1, 2]), request(700, [1, 3], output=600), request(2000, [1, 4, 5, 6], at=1.0)]
    load = plan(shared)
    assert not set(load.requests[1].nodes[1:]) & set(load.requests[2].nodes)


def test_links_chain_through_renamed_tails() -> None:
    trace = [
        request(600, [1, 2], output=500),  # 1,100 tokens: ends in the second block of 1 | 3
        request(1110, [1, 3, 4], output=500, at=1.0),  # its partly filled block is renamed by the next
        request(1700, [1, 3, 5, 6], at=2.0),
    ]
    load = plan(trace, 16)
    assert load.linked == 2
    paths = [r.nodes for r in load.requests]
    assert paths[0] == paths[2][: len(paths[0])]
    assert paths[1] == paths[2][: len(paths[1])]


def test_equal_prompts_get_equal_answers() -> None:
    load = plan([request(1100, [1, 2, 3], output=900), request(1100, [1, 2, 3], output=2000)], 64)
    short, long = load.requests
    assert long.nodes[: len(short.nodes)] == short.nodes
    assert load.unique_blocks == (1100 + 2000) // 64


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-3, 3), max_size=6), st.integers(0, 3000), st.integers(0, 1500)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([512, 128, 16]),
)
def test_any_trace_gives_consistent_places(rows: list[tuple[list[int], int, int]], block_tokens: int) -> None:
    trace = [request(tokens, ids, output, float(i)) for i, (ids, tokens, output) in enumerate(rows)]
    load = plan(trace, block_tokens)
    prefix_of: dict[int, tuple[int, ...]] = {}
    every: set[int] = set()
    for planned in load.requests:
        assert planned.prompt_blocks <= planned.total_blocks
        assert len(planned.nodes) == -(-planned.total_blocks // load.blocks.cut)
        path = load.blocks.places(planned.nodes, planned.total_blocks)
        local = tuple(load.blocks.local(path).tolist())
        external = load.blocks.external(path).tolist()
        for i, block in enumerate(external):
            # an external hash names one path of local hashes
            assert prefix_of.setdefault(block, local[: i + 1]) == local[: i + 1]
        every.update(external)
    assert load.unique_blocks == len(every)
