"""Launches the steps of a batch on the device; the host reads their tokens later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opdock import context
from opdock.errors import OrderError
from opdock.nn.attention.forward_context import set_forward_context
from opdock.nn.attention.paged_cache import PagedKVCache, attention_layers
from opdock.nn.batch.capture import Capture, GraphCapture, refuse_uncaptured
from opdock.nn.batch.forward import forward_of
from opdock.nn.batch.graphs import DecodeGraphs
from opdock.nn.batch.inputs import step_inputs
from opdock.nn.batch.invariance import require
from opdock.nn.batch.request import DrawError, Part, Request
from opdock.nn.invariant import follow, in_force
from opdock.nn.sampling import remember, sample

if TYPE_CHECKING:
    from opdock.nn.models.decoder import CausalDecoder


@dataclass(frozen=True, eq=False)
class Flight:
    """A launched step.

    Args:
        parts: those that choose a token.
        replayed: whether a graph was.
    """

    parts: Sequence[Part]
    replayed: bool
    _tokens: torch.Tensor | None
    _arrived: Any

    def tokens(self) -> list[int]:
        """Wait for the tokens and return them, one for each part."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [] if self._tokens is None else self._tokens.tolist()


def _schedule(parts: Sequence[Part]) -> None:
    """Count the positions of a step that was launched: last of all, so that one that raised can be launched again."""
    for part in parts:
        part.request.scheduled = part.end


@contextlib.contextmanager
def _naming(request: Request) -> Iterator[None]:
    """Say whose token it is that torch cannot draw."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as err:
        raise DrawError(
            f"No token can be drawn for request {request.id}.",
            who=str(request.sampling),
            why=str(err).strip().partition("\n")[0],
            remedy=f"remove({request.id}), and the others go on; see whether the model makes NaN.",
        ) from err


class Runner:
    """Runs a model over a paged cache.

    Args:
        model: with loaded weights; it is called as it was loaded, op by op or compiled.
        num_blocks: blocks of the cache.
        block_size: positions of a block.
        max_requests: the largest batch.
        width: the most blocks of a request.
        graphs: whether decode steps are captured and replayed.
        capture: what makes a graph of a step; None takes the device's.
        cache_dtype: of keys and values; None takes the model's.

    Raises: OrderError while the model serves another batch; UnsupportedError, with the layer, for graphs of a model
        with a backend that cannot be captured; BatchInvarianceError for a model that cannot promise what
        ``VLLM_BATCH_INVARIANT=1`` asks for.
    """

    def __init__(
        self,
        model: CausalDecoder,
        *,
        num_blocks: int,
        block_size: int,
        max_requests: int,
        width: int,
        graphs: bool,
        capture: Capture | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the cache, and bind the model's attention layers to it."""
        self.model = model
        self.device = model.model.embed_tokens.weight.device
        self._forward = forward_of(model)
        self._inference = context.platform().inference_mode
        self._graphs: DecodeGraphs | None = None
        # Captured steps hold the memory of the layers' caches and kernels: nobody else may bind them meanwhile.
        if any(layer.key_cache is not None for layer in attention_layers(model).values()):
            raise OrderError(
                "The model serves another batch.",
                why="Its attention layers write to one paged cache at a time, and one is bound to them.",
                remedy="close() the other batch, or unbind() that cache, first; or load the model a second time.",
            )
        follow()
        self.invariant = in_force()
        self._longest = width * block_size if self.invariant else None
        with self._inference():
            self.cache = PagedKVCache.for_model(model, num_blocks=num_blocks, block_size=block_size, dtype=cache_dtype)
            try:
                if self.invariant:
                    require(model, self.cache)
                if graphs and capture is None:
                    refuse_uncaptured(model)
                if graphs:
                    self._graphs = DecodeGraphs(
                        self._forward,
                        model.compute_logits,
                        self.cache,
                        max_requests=max_requests,
                        width=width,
                        device=self.device,
                        capture=capture or GraphCapture(self.device),
                    )
            except BaseException:
                self.cache.unbind()
                raise

    def launch(self, parts: Sequence[Part]) -> Flight:
        """Launch a step, all of whose tokens are known on the host; after an error it can be launched again."""
        if self._graphs is not None and all(p.request.decoding for p in parts):
            return self._replay(self._graphs, parts, known=True)
        with self._inference():
            inputs = step_inputs(parts, self.cache.block_size, self.device, longest=self._longest)
            with set_forward_context(inputs.metadata, self.cache):
                hidden = self._forward(inputs.input_ids, inputs.positions)
            choosing = [p for p in parts if p.samples]
            flight = Flight((), False, None, None)
            if choosing:
                logits = self.model.compute_logits(hidden if inputs.rows is None else hidden[inputs.rows])
                flight = self._choose(choosing, logits.argmax(dim=-1), logits, replayed=False)
        _schedule(parts)
        return flight

    def launch_ahead(self, parts: Sequence[Part], flight: Flight) -> Flight | None:
        """Launch the step that follows one in flight, if its input is on the device already; None if not."""
        if self._graphs is None or not flight.replayed or not parts or not self._graphs.follows(parts):
            return None
        return self._replay(self._graphs, parts, known=False)

    def _replay(self, graphs: DecodeGraphs, parts: Sequence[Part], *, known: bool) -> Flight:
        with self._inference():
            try:
                tokens, logits = graphs.replay(parts, known=known)
                flight = self._choose(parts, tokens, logits, replayed=True)
            except BaseException:
                graphs.forget()  # its buffers may hold tokens that nobody chose
                raise
        _schedule(parts)
        return flight

    def _choose(self, parts: Sequence[Part], tokens: torch.Tensor, logits: torch.Tensor, *, replayed: bool) -> Flight:
        """Overwrite the greedy tokens where another is to be drawn, and send them to the host."""
        drawing = [(row, part.request) for row, part in enumerate(parts) if not part.request.sampling.greedy]
        put_back = remember(request.generator for _, request in drawing)
        try:
            for row, request in drawing:
                with _naming(request):
                    tokens[row : row + 1] = sample(logits[row : row + 1], request.sampling, request.generator)
            return self._send(parts, tokens, replayed=replayed)
        except BaseException:  # launched again, the step draws what it would have drawn
            put_back()
            raise

    def _send(self, parts: Sequence[Part], tokens: torch.Tensor, *, replayed: bool) -> Flight:
        """Send the tokens to the host."""
        if self.device.type == "cpu":
            return Flight(parts, replayed, tokens.clone(), None)  # the next step writes them
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        arrived = torch.get_device_module(self.device).Event()
        arrived.record()
        return Flight(parts, replayed, host, arrived)
