"""What the documents name is there: files, headings, settings, paths, commands and scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ALL, FOR_USERS, NOT_RUN, ROOT, all_blocks, tables
from routes import aliases, routes

from umaserve import __version__
from umaserve.commands.foreign_names import FLAGS as FOREIGN
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.models import PER_MODEL
from umaserve.settings.relay import SETTINGS as RELAY_SETTINGS
from umaserve.settings.sources import Settings
from umaserve.settings.worker import SETTINGS as WORKER_SETTINGS

PROGRAMS = (SETTINGS, RELAY_SETTINGS, WORKER_SETTINGS)
GUIDE = ROOT / "docs/guide"
VARIABLES = {"UMA_CONFIG"}
"""Those of no setting."""


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The names by which others link to the headings of ``document``."""
    headings = re.findall(r"^#+ (.+)$", without_code(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", ALL, ids=by_path)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
        if re.match(r"https?:", target):
            continue
        name, _, heading = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        assert not heading or heading in anchors(path), target


@pytest.mark.parametrize(("hub", "folder"), [("README.md", "docs/guide"), ("ARCHITECTURE.md", "docs/internals")])
def test_each_page_can_be_found(hub: str, folder: str) -> None:
    linked = set(re.findall(rf"\]\(({folder}/[\w-]+\.md)\)", (ROOT / hub).read_text()))
    assert linked == {by_path(page) for page in (ROOT / folder).glob("*.md")}


def test_each_page_of_the_reference_can_be_found() -> None:
    linked = {
        name for page in GUIDE.glob("*.md") for name in re.findall(r"\]\(\.\./api/([\w-]+\.md)", page.read_text())
    }
    assert linked == {page.name for page in (ROOT / "docs/api").glob("*.md")}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_blocks_that_no_test_runs_are_known_by_name() -> None:
    first_lines = [block.first_line for block in all_blocks(*FOR_USERS)]
    assert {line: first_lines.count(line) for line in NOT_RUN} == dict.fromkeys(NOT_RUN, 1)


def test_blocks_say_their_language() -> None:
    for block in all_blocks(*FOR_USERS):
        assert block.language in {"sh", "console", "python", "json"}, block.name


@pytest.mark.parametrize("number", range(3), ids=["daemon", "relay", "worker"])
def test_the_tables_of_settings_are_those_that_matter_first(number: int) -> None:
    settings: Settings = PROGRAMS[number]
    rows = [(flag, default) for flag, default, _ in tables(GUIDE / "settings.md")[number][1:]]
    first = [settings.by_key[key] for key in settings.first]
    assert rows == [(f"`{each.flag}`", f"`{each.kind.render(each.default)}`") for each in first]


@pytest.mark.parametrize("document", FOR_USERS, ids=by_path)
def test_no_flag_and_no_variable_is_of_no_program(document: Path) -> None:
    text = without_code(document.read_text())
    settings = [setting for program in PROGRAMS for setting in program.by_key.values()]
    flags = {setting.flag for setting in settings} | {"--config"}
    flags |= {"--no-" + flag.removeprefix("--") for flag in flags}
    assert set(re.findall(r"`(--[a-z][\w-]*)", text)) <= flags | FOREIGN.keys()
    assert set(re.findall(r"\bUMA_\w+", text)) <= {setting.env for setting in settings} | VARIABLES


def test_what_a_table_of_a_model_has_is_a_setting_of_one() -> None:
    (toml,) = re.findall(r"^\[models\..*?^END$", (GUIDE / "several-models.md").read_text(), re.MULTILINE | re.DOTALL)
    keys = set(re.findall(r"^(\w+) = ", toml, re.MULTILINE))
    assert keys <= {*PER_MODEL, "path", "aliases", "description", "tags", "pin", "preload", "idle_unload"}


def test_the_paths_of_the_apis_are_those_that_are_served() -> None:
    (table,) = (table for table in tables(GUIDE / "apis.md") if table[0][0] == "path")
    named = set(re.findall(r"`(?:(?:GET|POST) )?(/[\w/.-]+)[`?]", " ".join(cell for row in table[1:] for cell in row)))
    served = {path for path in routes() if "{" not in path}
    assert named <= served | aliases().keys()
    # Not those for other programs' sake, and what belongs to the page.
    assert served - named == {
        *("/", "/docs", "/v1/health", "/api/default_ref_audio"),
        *("/api/embeddings", "/api/pull", "/api/create", "/api/copy", "/api/push", "/api/delete"),
    }


@pytest.mark.parametrize("document", ALL, ids=by_path)
def test_scripts_and_files_of_conf_are_there(document: Path) -> None:
    for name in re.findall(r"(?:scripts|conf)/[\w.-]+", document.read_text()):
        assert (ROOT / name.rstrip(".")).exists(), name


@pytest.mark.parametrize("document", ALL, ids=by_path)
def test_modules_of_the_benchmarks_are_there(document: Path) -> None:
    for name in re.findall(r"python3? -m bench\.(\w+)", document.read_text()):
        assert (ROOT / f"bench/{name}.py").exists(), name


def test_files_that_contributors_edit_are_there() -> None:
    text = without_code((ROOT / "CONTRIBUTING.md").read_text())
    for name in re.findall(r"`((?:umaserve|tests|docs|conf)(?:/[\w.-]+)+)`", text):
        assert (ROOT / name).exists(), name
    code = "".join(path.read_text() for path in (ROOT / "umaserve").rglob("*.py"))
    for owner, function in re.findall(r"`([A-Z][a-z]\w+)\.(\w+)`", text):
        assert re.search(rf"^class {owner}\b.*?^    def {function}\(", code, re.MULTILINE | re.DOTALL)


def test_a_visitor_waits_for_no_picture() -> None:
    pictures = [*(ROOT / "docs/pictures").iterdir()]
    assert [picture.name for picture in pictures if picture.stat().st_size >= 1_000_000] == []
    text = "".join(document.read_text() for document in ALL)
    assert [picture.name for picture in pictures if f"/{picture.name})" not in text] == []


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in (versions[:2] if versions[0] == "Unreleased" else versions[:1])
