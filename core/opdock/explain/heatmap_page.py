"""The heat map as one HTML page: no script, nothing from elsewhere, readable without colours and without hovering."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opdock.errors import printable
from opdock.explain.heatmap import ABSENT, CHOSEN, MEANING, STATES, Cell, HeatRow, providers_of

SIGNS = {
    "chosen": "●",
    "would take": "○",
    "declined": "✕",
    "unsupported here": "⊘",
    "not told": "?",
    "not registered": "·",
}


@dataclass(frozen=True)
class Section:
    """One more table of the page.

    Args:
        title: above it.
        text: a sentence below the title, or "".
        head: names of the columns.
        rows: of cells; the first column names the row.
        marked: for each row, whether it is marked as native.
    """

    title: str
    text: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    marked: Sequence[bool] = ()


def page(
    rows: Sequence[HeatRow], *, title: str, facts: Sequence[tuple[str, str]], sections: Iterable[Section] = ()
) -> str:
    """Return the page; everything that is passed in is escaped.

    Args:
        rows: of the map, in this order.
        title: of the page.
        facts: names and values, shown at the top.
        sections: tables between the facts and the map.
    """
    body = [
        f"<header><h1>{_text(title)}</h1>",
        '<dl class="facts">',
        *(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts),
        "</dl></header><main>",
        *(_section(section, f"s{n}") for n, section in enumerate(sections)),
        _map(rows),
        _details(rows),
        "</main>",
    ]
    return _HEAD.format(title=_text(title), style=_STYLE) + "\n".join(body) + "\n</body>\n</html>\n"


def _text(value: object) -> str:
    """Return text for HTML: a plugin's markup, controls and bidirectional marks are shown, not acted upon."""
    return html.escape(printable(str(value)), quote=True)


def _name(value: object) -> str:
    """Return a name that may be broken after its underscores."""
    return _text(value).replace("_", "_<wbr>")


def _slug(state: str) -> str:
    return state.replace(" ", "-")


def _section(section: Section, ident: str) -> str:
    marks = [*section.marked, *[False] * (len(section.rows) - len(section.marked))]
    lines = [
        f'<section aria-labelledby="{ident}"><h2 id="{ident}">{_text(section.title)}</h2>',
        f"<p>{_text(section.text)}</p>" if section.text else "",
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{ident}"><table class="list"><thead><tr>',
        *(f'<th scope="col">{_text(name)}</th>' for name in section.head),
        "</tr></thead><tbody>",
    ]
    for row, mark in zip(section.rows, marks, strict=True):
        first, *rest = row
        lines.append(f'<tr{" class=native" if mark else ""}><th scope="row">{_name(first)}</th>')
        lines += [f"<td>{_text(cell)}</td>" for cell in rest]
        lines.append("</tr>")
    return "".join([*lines, "</tbody></table></div></section>"])


def _map(rows: Sequence[HeatRow]) -> str:
    providers = providers_of(rows)
    lines = [
        '<section aria-labelledby="map"><h2 id="map">IR ops and providers</h2>',
        "<p>Point at a cell, or open it, for the reason; the table of reasons below holds all of them.</p>",
        '<ul class="legend">',
        *(f"<li>{_key(s)} {_text(MEANING[s])}</li>" for s in STATES[:1]),
        f"<li>{_key(CHOSEN, native=True)} of these, the native definition</li>",
        *(f"<li>{_key(s)} {_text(MEANING[s])}</li>" for s in STATES[1:]),
        "</ul>",
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="map"><table class="map">',
        '<caption class="quiet">Each row is an IR op, each column a provider.</caption>',
        '<thead><tr><th scope="col">IR op</th>',
        *(f'<th scope="col">{_name(p)}</th>' for p in providers),
        "</tr></thead><tbody>",
    ]
    for row in rows:
        mark = '<span class="mark">in the model</span>' if row.use else ""
        use = f' title="{_text(row.use)}"' if row.use else ""
        lines.append(
            f'<tr{" class=used" if row.use else ""}><th scope="row"{use}><code>{_name(row.op)}</code>{mark}</th>'
        )
        cells = {cell.provider: cell for cell in row.cells}
        lines += [_cell(cells.get(p)) for p in providers]
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div></section>"])


def _class(state: str, *, native: bool = False) -> str:
    return _slug(state) + (" by-native" if native and state == CHOSEN else "")


def _key(state: str, *, native: bool = False) -> str:
    return f'<span class="key {_class(state, native=native)}">{SIGNS[state]} {state}</span>'


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return f'<td class="{_slug(ABSENT)}"><span class="word">{SIGNS[ABSENT]} {ABSENT}</span></td>'
    kind = _class(cell.state, native=cell.provider == "native")
    word = f"{SIGNS[cell.state]} {cell.state}"
    return (
        f'<td class="{kind}" title="{_text(cell.reason)}"><details><summary>{word}</summary>'
        f"<p>{_text(cell.reason)}</p></details></td>"
    )


def _details(rows: Sequence[HeatRow]) -> str:
    head = ("IR op", "provider", "verdict", "reason", "registered at")
    lines = [
        '<section aria-labelledby="why"><h2 id="why">Reasons</h2>',
        "<p>Each op was asked with the arguments beside its name.</p>",
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="why"><table class="list"><thead><tr>',
        *(f'<th scope="col">{name}</th>' for name in head),
        "</tr></thead>",
    ]
    for row in rows:
        lines.append("<tbody>")
        for number, cell in enumerate(row.cells):
            lines.append("<tr>")
            if not number:
                use = f'<span class="mark">in the model: {_text(row.use)}</span>' if row.use else ""
                lines.append(
                    f'<th scope="rowgroup" rowspan="{len(row.cells)}"><code>{_name(row.op)}</code>'
                    f'{use}<span class="quiet">{_text(row.arguments)}</span></th>'
                )
            strong = " class=strong" if cell.state == CHOSEN else ""
            lines.append(
                f"<td{strong}>{_text(cell.provider)}</td>"
                f"<td>{_key(cell.state, native=cell.provider == 'native')}</td>"
                f'<td>{_text(cell.reason)}</td><td class="quiet">{_text(cell.source)}</td></tr>'
            )
        lines.append("</tbody>")
    return "\n".join([*lines, "</table></div></section>"])


_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""

# Every pair of text and ground has a contrast of 4.5 or more, in both schemes.
_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #1b1f24; --quiet: #57606a; --line: #d0d7de;
  --band: #f6f8fa; --accent: #0550ae; --chosen: #116329; --chosen-text: #ffffff;
  --native: #424a53; --native-text: #ffffff; --would-take: #dafbe1;
  --would-take-text: #0f5323; --declined: #ffe2c6; --declined-text: #6b2f00; --unsupported: #f1d9d9;
  --unsupported-text: #7a1620; --untold: #fff4c2; --untold-text: #5c4500; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --text: #e6edf3; --quiet: #9da7b3;
  --line: #3d444d; --band: #161b22; --accent: #79c0ff; --chosen: #3fb950; --chosen-text: #04120a;
  --native: #8b949e; --native-text: #0b0f14;
  --would-take: #12361d; --would-take-text: #a5e8b4; --declined: #4a2a0b; --declined-text: #ffcf9f;
  --unsupported: #4a1d22; --unsupported-text: #ffc4c4; --untold: #3f3508; --untold-text: #f6e08a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 1.5rem; background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; } code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0; }
.facts dt { color: var(--quiet); font-size: .8rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: .82rem; } th .quiet { display: block; font-weight: normal; margin-top: .2rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible, summary:focus-visible { outline: 3px solid var(--accent); outline-offset: 1px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } caption { text-align: left; padding: .5rem .6rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid var(--line); }
thead th { background: var(--band); border-top: 0; white-space: nowrap; } th { font-weight: 600; }
tbody + tbody { border-top: 2px solid var(--line); } .strong { font-weight: 700; }
.list { min-width: 46rem; } .list tbody th { min-width: 11rem; max-width: 22rem; } .list td { min-width: 5rem; }
.list td:nth-of-type(3) { min-width: 14rem; } .list td:last-child { min-width: 18rem; }
.map td { border-left: 1px solid var(--line); min-width: 8.5rem; max-width: 16rem; }
.map tbody th { position: sticky; left: 0; background: var(--ground); min-width: 9rem; max-width: 17rem; z-index: 1; }
.map thead th:first-child { position: sticky; left: 0; z-index: 1; }
summary { cursor: pointer; white-space: nowrap; } .word { white-space: nowrap; } td details p { margin: .35rem 0 0; }
.mark { display: inline-block; margin: .15rem 0 0 .4rem; padding: 0 .4rem; border: 1px solid var(--accent);
  border-radius: .5rem; color: var(--accent); font-size: .74rem; font-weight: 600; } .list .mark { margin-left: 0; }
.list code { display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem 1.25rem; padding: 0; margin: 0 0 .9rem;
  font-size: .85rem; }
.key { display: inline-block; padding: 0 .45rem; border-radius: 4px; white-space: nowrap; }
.chosen { background: var(--chosen); color: var(--chosen-text); font-weight: 600; }
.chosen.by-native { background: var(--native); color: var(--native-text); }
.would-take { background: var(--would-take); color: var(--would-take-text); }
.declined { background: var(--declined); color: var(--declined-text); }
.unsupported-here { background: var(--unsupported); color: var(--unsupported-text); }
.not-told { background: var(--untold); color: var(--untold-text); }
.not-registered { color: var(--quiet); }
tr.native th { border-left: 4px solid var(--declined-text); }
@media (max-width: 40rem) { body { padding: .9rem; } h1 { font-size: 1.3rem; }
  .map tbody th { min-width: 7rem; max-width: 9rem; overflow-wrap: anywhere; } .mark { margin-left: 0; } }
@media print { .scroll { overflow: visible; border: 0; } .map tbody th { position: static; } }
"""
