"""The map of IR ops and providers, as data and as a page."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from opdock import OpdockConfig, ir
from opdock.explain import heatmap, heatmap_page
from opdock.explain.heatmap import Cell, HeatRow, heat_rows, judge, providers_of

pytestmark = pytest.mark.usefixtures("taken_back", "_cpu")

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b[2J"
CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


@pytest.fixture
def _cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The built-in platform, without what is installed here."""
    from opdock.platforms import current

    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("OPDOCK_PLATFORM", "cpu")
    current.reset()
    yield
    current.reset()


def silu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def with_priority(**priorities: str) -> OpdockConfig:
    config = OpdockConfig()
    config.kernel_config.ir_op_priority = type(config.kernel_config.ir_op_priority)(priorities)
    return config


def register() -> None:
    """Register one provider for each verdict."""
    ir.ops.silu_and_mul.register_impl("first", supports_args=lambda x: HOSTILE)(silu)
    ir.ops.silu_and_mul.register_impl("second", supports_args=lambda x: True)(silu)
    ir.ops.silu_and_mul.register_impl("third")(silu)
    ir.ops.silu_and_mul.register_impl("absent", supported="no library")(silu)
    ir.ops.silu_and_mul.register_impl("raises", supports_args=lambda x: x.no_such)(silu)


def rows() -> tuple[HeatRow, ...]:
    register()
    return heat_rows(config=with_priority(silu_and_mul="first,second,native"))


def test_each_provider_of_an_op_has_one_state_with_a_reason() -> None:
    """Chosen, would take (behind another, or not in the priority), declined, unsupported, not told."""
    (row,) = (r for r in rows() if r.op == "silu_and_mul")
    told = {c.provider: (c.state, c.reason) for c in row.cells}
    assert told["first"] == ("declined", HOSTILE)
    assert told["second"] == ("chosen", "first in the priority that takes these arguments")
    assert told["native"][0] == "would take" and "second comes before it" in told["native"][1]
    assert told["third"] == ("would take", "not in the priority list")
    assert told["absent"] == ("unsupported here", "no library")
    assert told["raises"][0] == "not told" and "AttributeError" in told["raises"][1]


def test_every_ir_op_of_the_platform_has_a_row_and_native_is_the_last_column() -> None:
    """Ops that make no inputs say so."""
    found = rows()
    assert [r.op for r in found] == sorted(ir.registry)
    assert providers_of(found)[-1] == "native"
    (row,) = (r for r in found if r.op == "all_reduce")
    assert [(c.state, "no input generator" in c.reason) for c in row.cells] == [("not told", True)]
    assert [r.op for r in heat_rows("rms_norm")] == ["rms_norm"]


def test_a_models_rows_take_the_place_of_the_examples_and_come_first() -> None:
    """With the arguments of the model."""
    mine = HeatRow("silu_and_mul", "x=float32[16x1536]", (Cell("native", "chosen", "why", "here"),), "30 calls")
    found = heat_rows(model={"silu_and_mul": mine})
    assert found[0] is mine and [r.op for r in found[1:]] == sorted(set(ir.registry) - {"silu_and_mul"})


def test_a_predicate_in_the_priority_that_raises_leaves_the_op_untold() -> None:
    """The others cannot be asked behind it."""
    register()
    with ir.ops.silu_and_mul.set_priority(["raises", "native"]):
        cells = judge(ir.registry["silu_and_mul"], (torch.zeros(1, 4),))
    assert {c.state for c in cells} == {"not told", "unsupported here"}


class Page(HTMLParser):
    """Reads a page, and fails where elements are not closed in order."""

    VOID = ("meta", "wbr", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def page() -> str:
    section = heatmap_page.Section("Ops <of> it", HOSTILE, ("op", HOSTILE), [(HOSTILE, HOSTILE)], [True])
    marked = [HeatRow(r.op, r.arguments, r.cells, HOSTILE if r.op == "silu_and_mul" else "") for r in rows()]
    return heatmap_page.page(marked, title=HOSTILE, facts=[("Platform", HOSTILE)], sections=[section])


def test_the_page_holds_hostile_text_as_text_alone() -> None:
    """No element, attribute, control character or bidirectional mark of it gets through."""
    text = page()
    read = Page(text)
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags and "img" not in tags
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert "<script>alert(1)</script>" in read.text and "\\u202e" in read.text
    assert "\x1b" not in text and "\u202e" not in text
    assert any("<script>" in (attrs.get("title") or "") for _, attrs in read.tags)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No link, source, import or font of another place; its own policy forbids them too."""
    text = page()
    for _, attrs in Page(text).tags:
        assert not {"src", "href", "srcset", "action", "style", "background"} & set(attrs)
    assert "url(" not in text and "@import" not in text and "//" not in text.replace("&#x27;", "")
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text


def test_reasons_are_readable_without_hovering_and_colour_is_not_alone() -> None:
    """Each state is a word and a sign of its own; each reason is in the text, folded and in the table."""
    read = Page(page())
    for state, sign in heatmap_page.SIGNS.items():
        assert f"{sign} {state}" in read.text
    assert len(set(heatmap_page.SIGNS.values())) == len(heatmap.STATES)
    assert read.text.count("no library") == 2 and read.text.count("first in the priority that takes") == 2
    heads = [attrs.get("scope") for tag, attrs in read.tags if tag == "th"]
    assert None not in heads and {"col", "row", "rowgroup"} == set(heads)
    assert ("html", {"lang": "en"}) in read.tags


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(scheme: int) -> None:
    """4.5 to 1, as WCAG 2 AA wants."""
    blocks = re.findall(r":root \{(.*?)\}", heatmap_page._STYLE, re.DOTALL)
    names = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    pairs = [("text", "ground"), ("quiet", "ground"), ("accent", "ground"), ("text", "band")]
    pairs += [(name, name.removesuffix("-text")) for name in names if name.endswith("-text")]
    assert len(pairs) == 10
    for text, ground in pairs:
        light, dark = sorted((luminance(names[text]), luminance(names[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser (chromium), which is not here")
def test_a_browser_shows_it_without_overflow_or_complaint(tmp_path: Path, width: int) -> None:
    """The wide table scrolls inside its frame, the document does not."""
    assert CHROMIUM is not None
    report = (
        "const d = document.querySelector('iframe').contentDocument;"
        "document.body.dataset.found = d.documentElement.scrollWidth + ' ' + d.querySelectorAll('td').length;"
    )
    frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page())}"></iframe>'
    wrapper = f"<!DOCTYPE html><meta charset=utf-8><body>{frame}<script>onload = () => {{ {report} }}</script></body>"
    (tmp_path / "page.html").write_text(wrapper, encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=3000 --dump-dom"
    where = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1500,1000", f"file://{tmp_path / 'page.html'}"]
    done = subprocess.run(
        [CHROMIUM, *flags.split(), *more.split(), *where], capture_output=True, text=True, timeout=120, check=True
    )
    (found,) = re.findall(r'data-found="(\d+) (\d+)"', done.stdout)
    assert int(found[0]) <= width and int(found[1]) > len(ir.registry)
    assert "CONSOLE" not in done.stderr
