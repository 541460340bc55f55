"""Priorities: filtering, scopes, threads, batch invariance, reasons."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from typing import Any

import pytest
import torch

from opdock import ir
from opdock.errors import ConfigError, UnknownNameError


def make(n: float) -> Any:
    """Return a provider that adds n."""

    def provider(x: torch.Tensor, k: int = 0) -> torch.Tensor:
        return x + n

    return provider


def even(x: torch.Tensor, k: int = 0) -> object:
    return k % 2 == 0 or "k is odd"


@pytest.fixture
def op() -> Any:
    """Return an op with providers a (any), b (any), e (even k only), u (unsupported)."""

    @ir.register_op
    def t_prio(x: torch.Tensor, k: int = 0) -> torch.Tensor:
        return x.clone()

    t_prio.register_impl("a")(make(1))
    t_prio.register_impl("b")(make(2))
    t_prio.register_impl("e", supports_args=even)(make(3))
    t_prio.register_impl("u", supported="no such chip")(make(4))
    return t_prio


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ([], ["native"]),
        (["u"], ["native"]),
        (["native", "a"], ["native"]),
        (["e"], ["e", "native"]),
        (["a", "b"], ["a"]),
        (["e", "a", "native"], ["e", "a"]),
        (["e", "e", "a"], ["e", "a"]),
        (["u", "b"], ["b"]),
    ],
)
def test_filtering(given: list[str], tried: list[str], op: Any) -> None:
    """Unsupported dropped, cut after the first that takes anything, native at the end."""
    with op.set_priority(given):
        assert op.get_priority() == tried


def test_unknown_provider_is_an_error_and_changes_nothing(op: Any) -> None:
    """Case B35: in a user's list it is never silent."""
    op.set_default(["a"])
    with pytest.raises(UnknownNameError, match=r"op 't_prio' has no provider 'aa'[\s\S]*Did you mean 'a'"):
        op.set_default(["aa"])
    with pytest.raises(UnknownNameError), op.set_priority(["zz"]):
        pass
    assert op.get_priority() == ["a"]


def test_minus_drops_a_provider_of_the_priority_in_force(op: Any) -> None:
    """Not only outranked: gone."""
    op.set_default(["a", "native"])
    with op.set_priority(["-a"]):
        assert op.get_priority() == ["native"]
    with pytest.raises(ConfigError, match="cannot drop"):
        op.set_default(["-native"])


def test_b33_choice_is_per_call_and_explain_says_which_predicate_refused(op: Any) -> None:
    """Counts show who served; every provider has a verdict."""
    op.set_default(["e", "u", "native"])
    with ir.counting() as counts:
        assert [float(op(torch.zeros(()), k)) for k in (0, 1, 2)] == [3, 0, 3]
    assert counts == {("t_prio", "e"): 2, ("t_prio", "native"): 1}
    verdicts = {v.provider: (v.chosen, v.reason) for v in op.explain(torch.zeros(()), 1).verdicts}
    assert verdicts == {
        "e": (False, "k is odd"),
        "native": (True, "nothing before it takes these arguments"),
        "u": (False, "no such chip"),
        "a": (False, "not in the priority list"),
        "b": (False, "not in the priority list"),
    }
    assert op.dispatch(torch.zeros(()), 0).provider == "e"


def test_fallback_is_possible_is_warned_once_at_set_time(op: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With the op's name and what to do."""
    with caplog.at_level(logging.WARNING, "opdock"):
        op.set_default(["e"])
        op(torch.zeros(()), 1)
        op.set_default(["e"])
    found = [r.getMessage() for r in caplog.records if "fallback to native" in r.getMessage()]
    assert len(found) == 1 and "t_prio" in found[0] and "priority" in found[0]


def test_falling_to_native_is_said_once(op: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One line for the op, not one for each call."""
    op.set_default(["e", "native"])
    with caplog.at_level(logging.INFO, "opdock"):
        for k in (1, 0, 1, 3):
            op(torch.zeros(()), k)
    assert sum("t_prio falls to native" in r.getMessage() for r in caplog.records) == 1


def test_registering_while_a_priority_is_set_is_warned(op: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The new provider is not in it."""
    op.set_default(["a"])
    with caplog.at_level(logging.WARNING, "opdock"):
        op.register_impl("late")(make(9))
    assert "registering new impl late for op t_prio while priority is set" in caplog.text
    assert op.get_priority() == ["a"]


def test_scopes_nest_and_are_restored_on_exceptions(op: Any) -> None:
    """And a default set meanwhile is seen after the scope."""
    x = torch.zeros(())
    with op.set_priority(["a"]):
        with contextlib.suppress(ZeroDivisionError), op.set_priority(["b"]):
            assert op(x) == 2
            raise ZeroDivisionError
        assert op(x) == 1
        op.set_default(["b"])
        assert op(x) == 1
    assert op(x) == 2


def test_a_scope_is_of_its_thread_and_task(op: Any) -> None:
    """Other threads see the default, and tasks do not see each other's scopes."""
    x, seen = torch.zeros(()), []
    with op.set_priority(["a"]):
        thread = threading.Thread(target=lambda: seen.append(float(op(x))))
        thread.start()
        thread.join()
    assert seen == [0]

    async def task(name: str, value: float) -> bool:
        with op.set_priority([name]):
            for _ in range(20):
                await asyncio.sleep(0)
                if op(x) != value:
                    return False
        return True

    async def both() -> list[bool]:
        return await asyncio.gather(task("a", 1), task("b", 2))

    assert asyncio.run(both()) == [True, True]


def test_stress_of_scopes_and_swaps_leaks_nothing(op: Any) -> None:
    """Threads with scopes beside one that swaps the default: every call is served by what its own scope says."""
    x, wrong, stop = torch.zeros(()), [], threading.Event()

    def scoped(name: str, value: float) -> None:
        while not stop.is_set():
            with op.set_priority([name]):
                if op(x) != value:
                    wrong.append(name)

    def swap() -> None:
        for _ in range(300):
            op.set_default(["a"])
            op.set_default(["b"])
        stop.set()

    threads = [threading.Thread(target=scoped, args=a) for a in (("a", 1), ("b", 2), ("native", 0))]
    threads.append(threading.Thread(target=swap))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and op.op._scopes.count == 0 and op(x) == 2


def test_b62_batch_invariant_mode_chooses_only_providers_that_declare_it(
    op: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read when the priority is put in force, not at import; explain says so."""
    op.register_impl("inv", batch_invariant=True)(make(7))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    op.set_default(["a", "inv", "native"])
    assert op.get_priority() == ["inv"] and op(torch.zeros(())) == 7
    reason = next(v.reason for v in op.explain(torch.zeros(())).verdicts if v.provider == "a")
    assert "VLLM_BATCH_INVARIANT=1" in reason
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    op.set_default(["a", "inv", "native"])
    assert op.get_priority() == ["a"]


def test_roll_back_of_a_provider_restores_a_priority_without_it(op: Any) -> None:
    """A plugin that is taken back does not leave its name in force."""
    op.set_default(["a"])
    next(e for e in ir.op.journal.entries() if e.name == "t_prio.a").undo()
    assert "a" not in op.impls and op.get_priority() == ["native"]


def test_keywords_and_defaults_work_with_predicates(op: Any) -> None:
    """The generated functions have the native signature."""
    op.set_default(["e", "native"])
    assert op(x=torch.zeros(())) == 3 and op(torch.zeros(()), k=1) == 0
    assert op.apply_arg_defaults([1])[1:] == (0,)


def test_before_a_priority_is_set_native_runs_and_it_is_said_once(op: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The list is empty; dispatch and calls agree."""
    assert op.get_priority() == [] and op.op.default_names is None
    with caplog.at_level(logging.WARNING, "opdock"):
        assert (
            op(torch.zeros(())) == 0 and op.dispatch(torch.zeros(())) is op.impls["native"] and op(torch.ones(())) == 1
        )
    found = [r.getMessage() for r in caplog.records if "Priority not set for op t_prio" in r.getMessage()]
    assert len(found) == 1
    with op.set_priority(["a"]):
        assert op(torch.zeros(())) == 1 and op.get_priority() == ["a"]
    assert op.get_priority() == []


def test_a_provider_that_cannot_say_whether_it_is_supported_is_left_out(
    op: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Installed but broken: said once, with what it raised; the others go on."""

    def broken() -> bool:
        raise ImportError("libfoo.so.3: cannot open shared object file")

    op.register_impl("broken", supported=broken)(make(5))
    with caplog.at_level(logging.WARNING, "opdock"):
        op.set_default(["broken", "a"])
        op.set_default(["broken", "b"])
    assert op.get_priority() == ["b"] and "libfoo.so.3" in op.impls["broken"].reason
    assert caplog.text.count("provider broken is left out, its `supported` raised ImportError") == 1


def test_minus_keeps_the_rest_of_the_default(op: Any) -> None:
    """Names that are given come first."""
    op.set_default(["e", "a", "native"])
    with op.set_priority(["-e"]):
        assert op.get_priority() == ["a"]
    with op.set_priority(["b", "-a"]):
        assert op.get_priority() == ["b"]
    op.set_default(["-a"])
    assert op.get_priority() == ["e", "native"]
    with pytest.raises(UnknownNameError, match="no provider 'aa'"):
        op.set_default(["-aa"])
    with pytest.raises(ConfigError, match="listed as well"):
        op.set_default(["a", "-a"])
    with pytest.raises(ConfigError, match="is not a list"):
        op.set_default("a")


def test_a_task_that_outlives_the_scope_it_was_started_in_keeps_it(op: Any) -> None:
    """As with every context variable; it makes no difference whether others have scopes then."""
    x = torch.zeros(())
    op.set_default(["b"])

    async def late(ready: asyncio.Event) -> list[float]:
        await ready.wait()
        first = float(op(x))
        with op.set_priority(["native"]):
            inner = float(op(x))
        return [first, inner, float(op(x))]

    async def main() -> list[float]:
        ready = asyncio.Event()
        with op.set_priority(["a"]):
            task = asyncio.create_task(late(ready))
            await asyncio.sleep(0)
        ready.set()
        assert op(x) == 2
        return await task

    assert asyncio.run(main()) == [1, 0, 1]
    assert op(x) == 2 and op.op._scopes.count == 0


def test_a_truthy_answer_is_yes_and_a_string_is_no(op: Any) -> None:
    """Whatever the type of the answer."""
    for name, (answer, served) in {"n": (1, 5), "t": (torch.tensor(True), 5), "z": (0, 0), "s": ("why", 0)}.items():
        op.register_impl(f"answers_{name}", supports_args=_answering(answer))(make(5))
        with op.set_priority([f"answers_{name}", "native"]):
            assert op(torch.zeros(())) == served
            assert (op.dispatch(torch.zeros(())).provider == "native") is (served == 0)


def _answering(answer: object) -> Any:
    return lambda x, k=0: answer


def test_b62_the_environment_is_followed_without_a_new_default(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By get_priority, dispatch and explain; a call reads no environment, so it follows with them."""
    op.register_impl("inv", batch_invariant=True)(make(7))
    op.set_default(["a", "inv", "native"])
    assert op(torch.zeros(())) == 1
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert op.get_priority() == ["inv"] and op(torch.zeros(())) == 7
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    assert op.dispatch(torch.zeros(())).provider == "a" and op(torch.zeros(())) == 1


def test_b62_native_that_is_not_batch_invariant_is_warned_about(
    op: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing after it; the user hears that the promise does not hold, once it runs and not before."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with caplog.at_level(logging.WARNING, "opdock"):
        op.set_default(["a", "native"])
        op.set_default(["b", "native"])
        assert op.explain(torch.zeros(())).winner.is_native and op.get_priority() == ["native"]
        assert "results may depend on the batch" not in caplog.text
        assert [op(torch.zeros(())) for _ in range(2)] == [0, 0]
    assert caplog.text.count("results may depend on the batch") == 1


@pytest.mark.parametrize("ask", ["count", "dispatch", "fall", "torch_op"])
def test_a_native_that_is_not_batch_invariant_is_warned_about_however_it_comes_to_run(
    op: Any, ask: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted, asked for by a compiler, behind a provider that says no, or through the dispatcher."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    op.register_impl("picky", supports_args=lambda x, k=0: x.dim() == 1, batch_invariant=True)(make(7))
    x = torch.zeros(())
    with caplog.at_level(logging.INFO, "opdock"), op.set_priority(["picky", "native"] if ask == "fall" else ["native"]):
        if ask == "fall":
            assert op(torch.zeros(1)) == 7 and not caplog.text
        if ask == "count":
            with ir.counting():
                op(x)
        else:
            {"dispatch": op.dispatch, "torch_op": op.torch_op}.get(ask, op)(x)
        op(x)
    assert caplog.text.count("results may depend on the batch") == 1
    assert ("falls to native" in caplog.text) is (ask == "fall")


def test_a_default_that_names_a_provider_twice_tries_it_once(op: Any) -> None:
    """A second try would answer the same."""
    op.set_default(["e", "e", "native"])
    assert op.get_priority() == ["e", "native"]


def test_a_priority_may_be_any_iterable_of_names(op: Any) -> None:
    """A generator is read once; reading it twice would leave native alone."""
    op.set_default(name for name in ("b", "a"))
    assert op.get_priority() == ["b"]
    with op.set_priority(iter(["a"])):
        assert op.get_priority() == ["a"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_b14_children_forked_while_priorities_change_can_change_them(op: Any) -> None:
    """No child inherits a lock that a thread of its parent held."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            with op.set_priority(["a"]):
                pass

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                op.set_default(["b"])
                os._exit(op.get_priority() != ["b"])
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
