"""A batch of requests that join and leave between steps; who joins when is the caller's affair."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opdock import env
from opdock.errors import ConfigError, OrderError, UnknownNameError, UnsupportedError
from opdock.nn.batch.capture import Capture, refuse_without_graphs
from opdock.nn.batch.invariance import LARGEST_PART
from opdock.nn.batch.request import Output, Part, Request, plan_step, token_list, whole
from opdock.nn.batch.runner import Flight, Runner
from opdock.nn.generation import check_request
from opdock.nn.invariant import in_force
from opdock.nn.sampling import SamplingParams, make_generator

if TYPE_CHECKING:
    import torch

    from opdock.nn.models.decoder import CausalDecoder


class Batch:
    """Requests that one model serves together, each as if it were alone.

    A step is one forward over the next token of every request and over prompts, whole or in parts. The model runs
    as it was loaded, op by op or compiled; with ``graphs``, steps that only decode replay a captured graph of that.

    Args:
        model: with loaded weights; its attention layers are bound to this batch's cache until ``close``.
        max_requests: the most requests at a time.
        max_len: the longest prompt and answer together, in tokens; None takes the model's context.
        num_blocks: blocks of the cache; None: as many as ``max_requests`` of ``max_len`` can need.
        block_size: positions of a block.
        max_step_tokens: the most tokens of one step, decodes included; longer prompts are computed in parts.
        graphs: whether decode steps are captured and replayed.
        capture: what makes a graph of a step; None takes the device's own.
        cache_dtype: of keys and values; None takes the model's.

    A context manager: leaving it closes the batch.

    Raises: ConfigError for an impossible number; UnsupportedError for graphs where the platform has none, or a
        layer's backend, which it names, cannot be captured; OrderError
        while the model serves another batch; BatchInvarianceError, naming layer and op, where
        ``VLLM_BATCH_INVARIANT=1`` asks for what the model cannot promise.
    """

    def __init__(
        self,
        model: CausalDecoder,
        *,
        max_requests: int = 32,
        max_len: int | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_step_tokens: int = 8192,
        graphs: bool = False,
        capture: Capture | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the cache."""
        self.device = model.model.embed_tokens.weight.device
        context = model.config.max_position
        self.max_len = min(whole("max_len", context if max_len is None else max_len, 2), context)
        self.max_requests = whole("max_requests", max_requests, 1)
        self.max_step_tokens = whole("max_step_tokens", max_step_tokens, self.max_requests)
        width = -(-(self.max_len - 1) // whole("block_size", block_size, 1))
        if graphs and capture is None:
            refuse_without_graphs(self.device)
        self.model = model
        self._runner = Runner(
            model,
            num_blocks=max_requests * width if num_blocks is None else whole("num_blocks", num_blocks, 1),
            block_size=block_size,
            max_requests=max_requests,
            width=width,
            graphs=graphs,
            capture=capture,
            cache_dtype=cache_dtype,
        )
        self.cache = self._runner.cache
        self._unbind = weakref.finalize(self, self.cache.unbind)  # also for a batch that is forgotten, not closed
        # one part of a prompt always fits beside the other requests' tokens
        fits = max_step_tokens - max_requests + 1
        self._part = min(LARGEST_PART, fits) if self._runner.invariant else None
        self._requests: dict[int, Request] = {}
        self._flight: Flight | None = None
        self._count = 0

    # -- joining and leaving

    def add(
        self,
        tokens: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = 128,
        stop_tokens: Iterable[int] = (),
    ) -> int:
        """Let a request join with the next step and return its id.

        Blocks for its longest answer are set aside now, so that a request that has joined always comes to its end.

        Args:
            tokens: ids of the prompt.
            sampling: how each token is chosen; None is greedy.
            max_tokens: the most tokens to make, at least 1; ``max_len`` may end it earlier.
            stop_tokens: ids that end the text; they are not given out.

        Raises: ConfigError for a prompt that does not fit or is none; UnsupportedError where the batch or its cache
            has no place now; OrderError after ``close``. Nothing changes then for the others.
        """
        self._require_open()
        tokens = token_list(tokens)
        limit = self.check(tokens, max_tokens)
        need, allocator = self._blocks(len(tokens), limit), self.cache.allocator
        if not self._has_place(need):
            full = len(self._requests) >= self.max_requests
            raise UnsupportedError(
                "The batch has no place for another request now.",
                who=f"{len(self._requests)} requests run, and go on.",
                why=f"It holds max_requests={self.max_requests}."
                if full
                else f"{need} blocks are needed, and {allocator.num_free} of {allocator.num_blocks} are free.",
                remedy="add it again when a request has ended, or make a larger batch.",
            )
        sampling = sampling or SamplingParams()
        request = Request(
            id=self._count,
            tokens=tokens,
            limit=limit,
            full=limit == self.max_len - len(tokens),
            sampling=sampling,
            stop=frozenset(stop_tokens),
            generator=make_generator(sampling, self.device),
            blocks=allocator.allocate(need),
        )
        self._requests[request.id] = request
        self._count += 1
        return request.id

    def _require_open(self) -> None:
        if not self._unbind.alive:
            raise OrderError("The batch is closed.", remedy="make another one.")

    def check(self, tokens: Sequence[int], max_tokens: int = 128) -> int:
        """Return how many tokens ``add`` would let a request make; ConfigError for one that it would never take."""
        tokens = token_list(tokens)
        check_request(tokens, self.model.config, whole("max_tokens", max_tokens, 1))
        count = len(tokens)
        if count >= self.max_len:
            raise ConfigError(
                f"The prompt has {count} tokens, and a request of this batch holds {self.max_len}.",
                why="At least one place must be left for the answer.",
                remedy=f"shorten the prompt, or make the batch with max_len={count + 1} or more.",
            )
        limit = min(max_tokens, self.max_len - count)
        need, there = self._blocks(count, limit), self.cache.num_blocks
        if need > there:
            raise ConfigError(
                f"A prompt of {count} tokens and {limit} new ones never fit the cache.",
                why=f"They need {need} blocks of {self.cache.block_size} positions, and the cache has {there}.",
                remedy=f"use fewer max_tokens, or make the batch with num_blocks={need} or more.",
            )
        return limit

    def _blocks(self, prompt: int, limit: int) -> int:
        return -(-(prompt + limit - 1) // self.cache.block_size)  # the last token made is never fed back

    def _has_place(self, blocks: int) -> bool:
        return len(self._requests) < self.max_requests and blocks <= self.cache.allocator.num_free

    def remove(self, request: int) -> None:
        """Let a request leave before its end; the others go on.

        Raises: UnknownNameError for an id that does not run.
        """
        if request not in self._requests:
            running = ", ".join(map(str, self._requests)) or "none"
            raise UnknownNameError(
                f"No request {request!r} runs in this batch.",
                why="It has ended, or was removed." if request in range(self._count) else "No such id was given out.",
                remedy=f"use an id that add() returned; now running: {running}.",
            )
        self._leave(self._requests[request])

    def _leave(self, request: Request) -> None:
        request.over = True
        del self._requests[request.id]
        # A step in flight may still write to them; whoever gets them next writes in a later step of the same stream.
        self.cache.allocator.free(request.blocks)

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of the requests that have not ended, in the order of joining."""
        return tuple(self._requests)

    def close(self) -> None:
        """Drop all requests, and let the model forget the cache. A second time, nothing happens."""
        for request in list(self._requests.values()):
            self._leave(request)
        self._flight = None
        self._unbind()

    def __enter__(self) -> Batch:
        """Return the batch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the batch."""
        self.close()

    # -- running

    def step(self) -> list[Output]:
        """Run one step and return what it made; nothing for requests whose prompt is not through.

        After an error the step can be run again: it is as if it had not run.

        Raises: OrderError if ``VLLM_BATCH_INVARIANT`` was changed since the batch was made, or if
            another cache was bound to the model; DrawError, with the request, where no token can be drawn. What the
            model raises comes as it is.
        """
        if in_force() != self._runner.invariant:
            raise OrderError(
                f"{env.VLLM_BATCH_INVARIANT} was changed while a batch runs.",
                why="Its kernels were chosen, and what it runs was examined, when it was made.",
                remedy="close() it and make another one.",
            )
        flight = self._flight
        if flight is None:
            parts = self._plan()
            if not parts:
                return []
            flight = self._flight = self._runner.launch(parts)
        # the device works on the next step while the host looks at this one's tokens
        self._flight = self._runner.launch_ahead(self._plan(), flight) if flight.replayed else None
        outputs = []
        for part, token in zip(flight.parts, flight.tokens(), strict=True):
            request = part.request
            if request.over:
                continue
            output = request.accept(token)
            outputs.append(output)
            if output.finish_reason is not None:
                self._leave(request)
        return outputs

    def _plan(self) -> list[Part]:
        return plan_step(self._requests.values(), self.max_step_tokens, part=self._part)

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Return the tokens that follow each prompt; they join in order, as soon as there is place.

        Tokens of requests that were added before are dropped.

        Args:
            prompts: ids of each.
            options: of ``add``, the same for all.

        Raises: ConfigError before any work for a prompt that ``add`` would never take. After an error of a step none of
            these prompts runs any more.
        """
        self._require_open()
        given = [token_list(tokens) for tokens in prompts]
        limits = [self.check(tokens, options.get("max_tokens", 128)) for tokens in given]
        made: dict[int, list[int]] = {}
        at = 0
        try:
            while at < len(given) or not self._requests.keys().isdisjoint(made):
                while at < len(given) and self._has_place(self._blocks(len(given[at]), limits[at])):
                    made[self.add(given[at], **options)] = []
                    at += 1
                for output in self.step():
                    if output.token is not None and output.request in made:
                        made[output.request].append(output.token)
        except BaseException:
            for request in self._requests.keys() & made:  # nobody else knows of them, and they hold blocks
                self.remove(request)
            raise
        return list(made.values())
