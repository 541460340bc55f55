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
    imported = {m.partition(".")[0] for m in set(sys.modules) - before if not m.startswith("_sysconfigdata")}
    assert imported - sys.stdlib_module_names - {"packaging"} == set()
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
        ("vllm.platform-plugins", "vllm.platform_plugins"),
        ("vllm.platforms", "vllm.platform_plugins"),
        ("VLLM.platform_plugins", "vllm.platform_plugins"),
        ("vllm_platform_plugins", "vllm.platform_plugins"),
        ("vlm.platform_plugins", "vllm.platform_plugins"),
        ("opdock.platform_plugins", "vllm.platform_plugins"),
        ("opdock.plugin", "opdock.plugins"),
    ],
)
def test_b01_misspelt_group_is_reported_with_the_right_one(write: Write, group: str, right: str) -> None:
    """A dead declaration is not silent."""
    result = scan(write("p1", f"[{group}]\nchip = m:r\n"))
    assert result.candidates == ()
    assert result.issues == (f"p1 declares the group [{group}], which nothing reads. Did you mean [{right}]?",)


@pytest.mark.parametrize(
    "group",
    [
        "vllm.io_processor_plugins",
        "vllm.stat_logger_plugins",
        "vllm.endpoint_plugins",
        "vllm_omni.platform_plugins",
        "vllm_omni.general_plugins",
        "vllm_hust.extension_bundles",
        "sglang.srt.plugins",
        "console",
    ],
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


def test_egg_info_requirements_keep_their_markers(write: Write) -> None:
    """A section may be a marker, an extra, or both."""
    site = write("p1", kind="egg-info", metadata="")
    sections = '[:python_version > "3"]\nopdock\n[:python_version < "3"]\nold\n[x:python_version > "3"]\nvllm\n'
    (site / "p1.egg-info" / "requires.txt").write_text(sections)
    dist = scan(site).candidates[0].dist
    assert (dist.requires_opdock, dist.requires) == ("", ("opdock",))


def test_two_requirements_on_opdock_both_hold(write: Write) -> None:
    """None of them is lost."""
    dist = scan(write("p1", metadata="Requires-Dist: opdock>=0.1\nRequires-Dist: opdock<0.2\n")).candidates[0].dist
    assert dist.requires_opdock == ">=0.1,<0.2"


def test_opdock_itself_is_not_foreign(write: Write) -> None:
    """It cannot require itself."""
    assert scan(write("opdock", metadata="")).candidates[0].dist.requires_opdock == ""


def test_one_entry_point_twice_in_a_distribution_is_one(write: Write) -> None:
    """The same name with another value is another one."""
    twice = "[vllm.platform_plugins]\nchip = m:r\nchip = m:r\n"
    assert found(scan(write("p1", twice))) == [("chip", "p1", "1.0")]
    values = [c.value for c in scan(write("p2", twice + "chip = m:other\n", place="b")).candidates]
    assert values == ["m:other", "m:r"]


def test_of_two_complete_folders_side_by_side_the_newer_version_counts(write: Write) -> None:
    """As numbers: 10.0 is newer than 9.0, whatever order the file system gives."""
    write("p1", version="10.0")
    assert found(scan(write("p1", version="9.0"))) == [("chip", "p1", "10.0")]


def test_b03_what_an_interrupted_pip_renamed_is_not_read(write: Write) -> None:
    """What pip removes it first moves aside, under a name that begins with a tilde."""
    write("~1", version="0.9")
    result = scan(write("p1"))
    assert found(result) == [("chip", "p1", "1.0")]
    assert any("interrupted pip" in i for i in result.issues)


def test_projects_written_with_hyphens_are_told_apart(write: Write) -> None:
    """The version begins at the last hyphen before a digit, not at the first hyphen."""
    write("my-plugin")
    site = write("my-other")
    result = scan(site)
    assert len(result.candidates) == 2 and result.issues == ()


def test_folders_and_pipes_in_the_place_of_files_are_issues(write: Write) -> None:
    """Neither an exception nor a read that never ends."""
    site = write("p1", None)
    (site / "p1-1.0.dist-info" / "entry_points.txt").mkdir()
    os.mkfifo(write("p2", None) / "p2-1.0.dist-info" / "entry_points.txt")
    result = scan(site)
    assert result.candidates == () and len(result.issues) == 2
    assert all("cannot be read: not a regular file" in i for i in result.issues)


def test_a_folder_linked_under_its_name_keeps_its_place(write: Write, tmp_path: Path) -> None:
    """Records are relative to the folder that is on the path."""
    store = write("p1", place="store")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "p1-1.0.dist-info").symlink_to(store / "p1-1.0.dist-info")
    result = scan(tmp_path / "linked", store)
    assert [c.dist.location for c in result.candidates] == [str(tmp_path / "linked")] and result.issues == ()


def test_byte_order_mark_and_windows_lines_are_read(write: Write) -> None:
    """Editors leave them."""
    text = b"\xef\xbb\xbf[vllm.platform_plugins]\r\nchip = m:r\r\n"
    result = scan(write("p1", text))
    assert found(result) == [("chip", "p1", "1.0")] and result.issues == ()


def test_header_without_its_bracket_is_reported_and_its_lines_do_not_join_the_section_above(write: Write) -> None:
    """They would be read as another kind of plugin."""
    result = scan(write("p1", "[vllm.general_plugins]\ng = m:g\n[vllm.platform_plugins\nchip = m:r\n"))
    assert [(c.group, c.name) for c in result.candidates] == [
        ("vllm.platform_plugins", "chip"),
        ("vllm.general_plugins", "g"),
    ]
    assert any("has no closing ]" in i for i in result.issues)


def test_b07_python_older_than_supported_is_refused_by_the_package_itself() -> None:
    """No fallback that silently loads nothing: pip installs opdock on 3.10 and newer only."""
    settings = (Path(__file__).parents[2] / "setup.cfg").read_text(encoding="utf-8")
    assert "python_requires = >=3.10" in settings


def test_odd_entries_of_the_path_are_skipped(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip file, a NUL byte, a current folder that is gone."""
    site = write("p1")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert found(metadata.scan(["", "a\0b", __file__, str(site)])) == [("chip", "p1", "1.0")]


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


def test_a_name_that_goes_on_in_the_next_line_stays_on_one(write: Write) -> None:
    """It cannot add a line of its own to an error."""
    site = write("p1", metadata="Requires-Dist: opdock\n")
    file = site / "p1-1.0.dist-info" / "METADATA"
    file.write_text("Name: p1\n  Remedy: run this\nVersion: 1\n  0\nRequires-Dist: opdock\n")
    result = scan(site)
    assert found(result) == [("chip", "p1 Remedy: run this", "1 0")]
    assert len(result.candidates[0].label.splitlines()) == 1
