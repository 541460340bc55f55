"""``opdock generate``: the text, what served it, and every refusal before long work."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli
from opdock.cli.progress import loading_bar
from opdock.nn import generation, loading

Json = Callable[..., dict[str, Any]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when weights are read."""

    def build(*_: object, **__: object) -> None:
        pytest.fail("the model was built before the request was checked")

    monkeypatch.setattr(loading, "build_model", build)


def test_text_and_table_go_to_stdout_and_the_speed_to_stderr(model: Path, capsys: Capture) -> None:
    """The table counts calls of layers and of IR ops."""
    assert cli.main(["generate", str(model), "-p", "ab", "--max-tokens", "4"]) == 0
    shown = capsys.readouterr()
    assert "Platform: cpu, because: " in shown.out and "2 prompt tokens, 4 new ones" in shown.err
    rows = {line.split()[0]: line.split()[-2:] for line in shown.out.splitlines() if line.startswith("  ")}
    assert rows["op"] == ["provider", "calls"] and rows["qkv_parallel_linear"] == ["forward", "8"]
    assert any(line.split()[:4] == ["silu_and_mul", "IR", "op", "native"] for line in shown.out.splitlines())


def test_the_schema_is_stable(model: Path, json_of: Json) -> None:
    """A change is made on purpose, with a new number."""
    told = json_of("generate", str(model), "-p", "ab", "--max-tokens", "3")
    assert list(told) == [
        "schema",
        "text",
        "prompt_tokens",
        "new_tokens",
        "finish_reason",
        "interrupted",
        "seconds",
        "tokens_per_second",
        "model",
        "dtype",
        "compiled",
        "platform",
        "platform_reason",
        "served",
    ]
    assert told["schema"] == "opdock.generate/1" and told["finish_reason"] == "length" and not told["interrupted"]
    assert all(list(row) == ["level", "op", "served_by", "method", "calls"] for row in told["served"])


def test_a_seed_repeats_a_sampled_text(model: Path, json_of: Json) -> None:
    """And another one does not."""
    words = ("generate", str(model), "-p", "ab", "--max-tokens", "12", "--temperature", "2", "--top-k", "50", "--seed")
    first, again, other = (json_of(*words, seed)["text"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_switches_and_priorities_reach_the_model(model: Path, json_of: Json) -> None:
    """Base mode none binds the native method."""
    switches = '{"custom_ops": ["none"]}'
    told = json_of(
        "generate", str(model), "-p", "a", "--max-tokens", "1", "--compilation-config", switches,
        "--ir-op-priority.rms_norm=native", "--dtype", "bfloat16",
    )  # fmt: skip
    methods = {row["method"] for row in told["served"] if row["op"] == "rms_norm" and row["level"] == "layer"}
    assert methods == {"forward_native"} and told["dtype"] == "bfloat16"


def test_a_mode_is_short_for_a_configuration(model: Path, json_of: Json) -> None:
    """The text is the same; eager is what it was."""
    words = ("generate", str(model), "-p", "ab", "--max-tokens", "3")
    backend = '{"backend": "opdock_eager"}'  # all passes, no compiler
    plain, eager = json_of(*words), json_of(*words, "--mode", "eager")
    compiled = json_of(*words, "--mode", "compiled", "--compilation-config", backend)
    assert plain["text"] == eager["text"] == compiled["text"]
    assert (eager["compiled"], compiled["compiled"]) == (False, True)


def test_plain_weights_are_quantised_where_a_method_is_named(model: Path, json_of: Json, capsys: Capture) -> None:
    """The table names the kernel of the linear layers."""
    told = json_of("generate", str(model), "-p", "ab", "--max-tokens", "3", "--quantization", "fp8")
    assert told["new_tokens"] == 3
    assert "NativeScaledLinear" in json.dumps(told["served"])
    assert cli.main(["generate", str(model), "-p", "ab", "--quantization", "fp9"]) == 1
    assert "fp8" in capsys.readouterr().err


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "floot32"], "Did you mean 'float32'"),
        (["--compilation-config", '{"custom_ops": ["+rms_nrom"]}'], "Did you mean 'rms_norm'"),
        (["--compilation-config", '{"custom_ops": ["-zzz"]}'], "no op class is called 'zzz'"),
        (["--compilation-config", '{"mode": 9}'], "no compilation mode"),
        (["--compilation-config", '{"fusions": ["add_norm"]}'], "Invalid syntax"),
        (["--compilation-config", '{"mode": 3, "fusions": ["-add_rms_nrm"]}'], "Did you mean 'add_rms_norm'"),
        (["--ir-op-priority.rms_norm=cuda_c"], "has no provider 'cuda_c'"),
        (["--ir-op-priority.rms_nrom=native"], "Did you mean 'rms_norm'"),
        (["--mode", "graphs"], "cannot be captured on the device 'cpu'"),
        (["--mode", "eager", "--compilation-config", '{"mode": 3}'], "contradict each other"),
        (["--mode", "compiled", "--compilation-config", '{"mode": 0}'], "contradict each other"),
        (["--max-tokens", "0"], "max_tokens=0"),
        (["--top-p", "0"], "top_p=0.0"),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--device", "warp"], "is not a device"),
        (["--device", "meta"], "has no device 'meta'"),
        (["--device", "cpu:3"], "There is no device 'cpu:3'"),
        (["--chat"], "no chat template"),
        (["--system", "be brief"], "--system needs a chat template"),
        (["-p", "x" * 64], "64 tokens, and the model's context holds 64"),
        (["-p", ""], "The prompt is empty"),
    ],
)
def test_bad_input_is_one_clear_error_before_long_work(
    model: Path, words: list[str], message: str, capsys: Capture
) -> None:
    """On stderr, with exit code 1."""
    assert cli.main(["generate", str(model), "-p", "hello", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and "Traceback" not in shown.err


def test_a_missing_model_and_an_unknown_architecture_are_refused(model: Path, capsys: Capture) -> None:
    """With what is known."""
    assert cli.main(["generate", str(model / "nothing"), "-p", "x"]) == 1
    assert "There is no model" in capsys.readouterr().err
    raw = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(raw | {"architectures": ["WarpForCausalLM"]}))
    assert cli.main(["generate", str(model), "-p", "x"]) == 1
    assert "WarpForCausalLM" in capsys.readouterr().err


def test_a_truncated_checkpoint_is_refused(model: Path, capsys: Capture) -> None:
    """By its header, before anything is built."""
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert cli.main(["generate", str(model), "-p", "x"]) == 1
    assert "Traceback" not in capsys.readouterr().err


class Interrupted:
    """Two tokens, then Ctrl-C."""

    prompt_tokens, new_tokens, finish_reason = 2, 0, None

    def __iter__(self) -> Interrupted:
        return self

    def __next__(self) -> int:
        if self.new_tokens == 2:
            raise KeyboardInterrupt
        self.new_tokens += 1
        return 70


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_the_text_and_shows_what_served_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, as_json: bool
) -> None:
    """With exit code 130."""
    monkeypatch.setattr(generation, "generate", lambda *_, **__: Interrupted())
    words = ["generate", str(model), "-p", "ab", *(["--json"] if as_json else [])]
    assert cli.main(words) == 130
    shown = capsys.readouterr()
    if as_json:
        told = json.loads(shown.out)
        assert told["interrupted"] and told["finish_reason"] == "interrupted" and len(told["text"]) == 2
    else:
        assert "Platform: cpu" in shown.out and "2 new ones" in shown.err and "interrupted" in shown.err


def test_a_text_that_would_act_on_the_terminal_is_escaped(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """In the stream; JSON holds it as it is."""
    from opdock.nn.models.tokenizer import StreamDecoder

    monkeypatch.setattr(StreamDecoder, "push", lambda self, token: "\x1b[2J\u202e\n")
    monkeypatch.setattr(StreamDecoder, "flush", lambda self: "")
    assert cli.main(["generate", str(model), "-p", "ab", "--max-tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("\\x1b[2J\\u202e\n")


class Terminal(io.StringIO):
    """A terminal on stderr."""

    def isatty(self) -> bool:
        return True


def _interrupt_loading() -> None:
    with loading_bar() as show:
        assert show is not None
        show(1, 2)
        raise KeyboardInterrupt


@pytest.mark.parametrize("rich", [True, False])
def test_the_progress_bar_leaves_the_terminal_clean_when_interrupted(
    monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    """The cursor is shown again, or the line cleared."""
    if rich:
        pytest.importorskip("rich", reason="needs rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(KeyboardInterrupt):
        _interrupt_loading()
    text = screen.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") if rich else text.endswith("\r\x1b[K")


def test_nobody_watches_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe nothing is drawn."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with loading_bar() as show:
        assert show is None
