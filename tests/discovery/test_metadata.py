"""The scan: what it finds, what it survives, what it reports. It imports nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock.discovery import metadata

Write = Callable[..., Path]


def found(scan: metadata.Scan) -> list[tuple[str, str, str]]:
    """Return (name, distribution, version) of each candidate."""
    return [(c.name, c.dist.name, c.dist.version) for c in scan.candidates]


def scan(*paths: Path, cwd: str = "/") -> metadata.Scan:
    """Scan folders, from another current folder."""
    return metadata.scan([str(p) for p in paths], cwd=cwd)


def test_entry_points_of_the_three_groups_are_found_with_their_distribution(write: Write) -> None:
    """Nothing is imported: the modules do not even exist."""
    text = (
        "[console_scripts]\nx = y:z\n[vllm.general_plugins]\ng = m.g:f\n[opdock.plugins]\nh = m.h\n"
        "[vllm.platform_plugins]\np = m.p : register  [extra]\n"
    )
    site = write("vendor_pkg", text)
    before = set(sys.modules)
    result = scan(site)
    assert [(c.group, c.name, c.value) for c in result.candidates] == [
        ("vllm.platform_plugins", "p", "m.p : register"),
        ("vllm.general_plugins", "g", "m.g:f"),
        ("opdock.plugins", "h", "m.h"),
    ]
    assert {m for m in set(sys.modules) - before if not m.startswith(("packaging", "email"))} == set()
    assert result.issues == () and result.candidates[0].dist.requires_opdock == ">=0.1"


def test_b02_two_metadata_folders_of_one_project_give_its_entry_points_once(write: Write) -> None:
    """An egg-info in a source tree and a dist-info in site-packages; my_plugin is my-plugin."""
    a = write("my_plugin", place="a", kind="egg-info")
    b = write("my-plugin", place="b")
    result = scan(a, b)
    assert len(result.candidates) == 1
    assert "my-plugin has 2 metadata folders" in result.issues[0]


@pytest.mark.parametrize("entry_points", [None, ""])
def test_b03_an_empty_older_folder_does_not_hide_the_good_one(write: Write, entry_points: str | None) -> None:
    """Left by an interrupted uninstall."""
    write("p1", entry_points, metadata=None)
    site = write("p1", version="2.0")
    result = scan(site)
    assert found(result) == [("chip", "p1", "2.0")]
    assert "p1 has 2 metadata folders (1 without entry points" in result.issues[0]


def test_b03_a_stale_egg_info_earlier_on_the_path_does_not_hide_the_good_one(write: Write) -> None:
    """It has metadata, but no entry points."""
    stale = write("p1", None, place="src", kind="egg-info")
    site = write("p1", version="2.0")
    assert found(scan(stale, site)) == [("chip", "p1", "2.0")]


def test_b05_one_name_in_two_distributions_gives_both(write: Write) -> None:
    """In either order of the path the same; who wins is not decided here."""
    a, b = write("p1", place="a"), write("p2", place="b")
    assert found(scan(a, b)) == found(scan(b, a)) == [("chip", "p1", "1.0"), ("chip", "p2", "1.0")]


@pytest.mark.parametrize(
    "text",
    [
        "[vllm.x]\nno equals sign\n",
        "garbage before\n[console_scripts]\nbad\n",
        "[unclosed\na = b\n",
        "\x00\x01[[]\n= v\n",
    ],
)
def test_malformed_metadata_of_an_unrelated_package_costs_nothing(write: Write, text: str) -> None:
    """One line without an equals sign breaks importlib.metadata for every group."""
    write("unrelated", text)
    assert found(scan(write("p1"))) == [("chip", "p1", "1.0")]


def test_a_malformed_line_costs_that_line_and_is_reported(write: Write) -> None:
    """The good line of the same section is kept."""
    site = write("p1", "[vllm.platform_plugins]\nbroken line\nchip = chip_mod:register\nempty =\n")
    result = scan(site)
    assert found(result) == [("chip", "p1", "1.0")]
    assert any("broken line" in i for i in result.issues) and any("empty" in i for i in result.issues)


def test_bytes_that_are_no_utf8_are_no_exception(write: Write) -> None:
    """Latin-1 in a file that should be UTF-8; the others are found all the same."""
    write("bad", "[vllm.platform_plugins]\nchip = café:x\n".encode("latin-1"))
    result = scan(write("p1"))
    assert ("chip", "p1", "1.0") in found(result)


@pytest.mark.parametrize(
    ("group", "right"),
    [
        ("vllm.platform_plugin", "vllm.platform_plugins"),
        ("vllm.platforms_plugins", "vllm.platform_plugins"),
        ("vllm.general_plugin", "vllm.general_plugins"),
        ("vllm.plugins", "vllm.platform_plugins"),
        ("opdock.plugin", "opdock.plugins"),
    ],
)
def test_b01_misspelt_group_is_reported_with_the_right_one(write: Write, group: str, right: str) -> None:
    """A dead declaration is not silent."""
    result = scan(write("p1", f"[{group}]\nchip = m:r\n"))
    assert result.candidates == ()
    assert result.issues == (f"p1 declares the group [{group}], which nothing reads. Did you mean [{right}]?",)


@pytest.mark.parametrize(
    "group", ["vllm.io_processor_plugins", "vllm.stat_logger_plugins", "vllm_omni.other", "console"]
)
def test_groups_of_others_are_left_alone(write: Write, group: str) -> None:
    """Known groups of vLLM and groups of somebody else."""
    assert scan(write("p1", f"[{group}]\nchip = m:r\n")).issues == ()


def test_duplicate_paths_and_links_are_read_once(write: Write, tmp_path: Path) -> None:
    """The same folder three times on the path."""
    site = write("p1")
    (tmp_path / "link").symlink_to(site)
    result = scan(site, site, tmp_path / "link", tmp_path / "missing", Path(os.devnull))
    assert len(result.candidates) == 1 and result.issues == ()


def test_metadata_found_only_through_the_current_folder_is_reported_and_marked(write: Write) -> None:
    """It is not loaded: whoever puts a folder in front of the user would decide."""
    site = write("p1")
    for entry in ("", ".", str(site)):
        result = metadata.scan([entry if entry != "." else str(site)], cwd=str(site))
        assert [c.dist.only_in_cwd for c in result.candidates] == [True]
        assert any("only through the current folder" in i for i in result.issues)
    elsewhere = write("p1", place="installed")
    assert [c.dist.only_in_cwd for c in metadata.scan(["", str(elsewhere)], cwd=str(site)).candidates] == [False]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", None),
        ("Requires-Dist: opdock\n", ""),
        ("Requires-Dist: OpDock (>=1,<2)\n", "<2,>=1"),
        ('Requires-Dist: opdock>=1; extra == "opdock"\n', None),
        ('Requires-Dist: opdock>=1; python_version > "3"\n', ">=1"),
        ('Requires-Dist: opdock>=1; python_version < "3"\n', None),
        ("Requires-Dist: opdock-cuda\nRequires-Dist: vllm>=0.1\n", None),
        ("Requires-Dist: ???\nRequires-Dist: opdock\n", ""),
    ],
)
def test_requirement_on_opdock_makes_a_distribution_ours(write: Write, lines: str, expected: str | None) -> None:
    """Markers count, extras do not; an unreadable line is skipped."""
    assert scan(write("p1", metadata=lines)).candidates[0].dist.requires_opdock == expected


def test_egg_info_requirements_are_read(write: Write) -> None:
    """They stand in requires.txt, above the first extra."""
    site = write("p1", kind="egg-info", metadata="")
    (site / "p1.egg-info" / "requires.txt").write_text("opdock>=0.1\n\n[extra]\nvllm\n")
    dist = scan(site).candidates[0].dist
    assert (dist.requires_opdock, dist.requires) == (">=0.1", ("opdock",))


def test_missing_metadata_still_gives_a_name_and_a_version(write: Write) -> None:
    """From the folder's name."""
    dist = scan(write("p1", metadata=None)).candidates[0].dist
    assert (dist.name, dist.version, dist.requires_opdock) == ("p1", "1.0", None)


def test_hostile_names_are_kept_as_data(write: Write) -> None:
    """Escaping is done where they are printed."""
    result = scan(write("p1", "[vllm.platform_plugins]\n\x1b[31m[red]x = m:r\n"))
    assert result.candidates[0].name == "\x1b[31m[red]x"


def test_the_real_path_is_scanned_without_an_exception() -> None:
    """And finds the package that this checkout brings."""
    names = {c.name for c in metadata.scan().candidates}
    assert "opdock_cuda" in names
