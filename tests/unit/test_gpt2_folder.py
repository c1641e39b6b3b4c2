"""A GPT-2 as saved by Hugging Face's programs: read for the kernels, refused by name, and written.

The reader belongs to a day's program (days/day100/folder.py, generate.py), whose `show` proves the
parts that need the kernels. The other parts are tested here, with the kernels' references in place
of the kernels. transformers is compared with if it is installed; nothing else needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from common.base.paths import ROOT
from days.day86 import training
from days.day100 import generate, model
from days.day100.folder import read_config, read_weights, vocabulary_of
from days.day100.weights import RefusedError, Vocabulary, Weights

CONFIG: dict[str, Any]
CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 12}
CONFIG |= {"vocab_size": 300, "eos_token_id": 0, "activation_function": "gelu_new"}
END = "<|endoftext|>"
TRAINED_ON = ["Hello world, hello words\n", "und Grüße, 😀 and again"] * 4


def tensors_of(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors by GPT-2's names, in bf16."""
    C = config["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config["vocab_size"], C)}
    shapes |= {"wpe.weight": (config["n_positions"], C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for h in (f"h.{i}." for i in range(config["n_layer"])):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{h}{norm}.weight": (C,), f"{h}{norm}.bias": (C,)}
        products = {"attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C)}
        products |= {"mlp.c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}
        for name, shape in products.items():
            shapes |= {f"{h}{name}.weight": shape, f"{h}{name}.bias": shape[1:]}
    generator = torch.Generator().manual_seed(100)
    return {
        name: (0.2 * torch.randn(shape, generator=generator)).bfloat16()
        for name, shape in shapes.items()
    }


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    header, data = {}, b""
    for name, tensor in tensors.items():
        part = tensor.float().numpy().tobytes()
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": "F32", "shape": [*tensor.shape], "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(folder: Path, tensors: dict[str, torch.Tensor], **changed: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    write_safetensors(folder / "model.safetensors", tensors)


def byte_level_bpe() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    made.train_from_iterator(TRAINED_ON, trainer)
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one tokeniser in both forms: tokenizer.json, and vocab.json with merges.txt."""
    made = byte_level_bpe()
    found = {}
    for form in ("whole", "parts"):
        found[form] = tmp_path_factory.mktemp(form)
        write_folder(found[form], {})
    made.save(str(found["whole"] / "tokenizer.json"))
    made.model.save(str(found["parts"]))
    return found


def vocabulary(folder: Path) -> Vocabulary:
    return vocabulary_of(folder, CONFIG)[0]


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("form", ["plain", "prefixed", "sharded"])
def test_weights_are_read(form: str, tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    named = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    named["lm_head.weight"] = tensors["wte.weight"]
    write_folder(tmp_path, tensors if form == "plain" else named)
    if form == "sharded":
        (tmp_path / "model.safetensors").unlink()
        names = [*named]
        for part, of in (("a", names[:9]), ("b", names[9:])):
            write_safetensors(tmp_path / part, {name: named[name] for name in of})
        weight_map = {name: "a" if i < 9 else "b" for i, name in enumerate(names)}
        index = json.dumps({"weight_map": weight_map})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    weights = read_weights(tmp_path, read_config(tmp_path), 290)
    assert weights.shape == (2, 2, 32, 290, 12)  # no word without a token
    wte, wpe, vectors, last, qkv, proj, fc, out = weights.tensors
    assert torch.equal(wte, tensors["wte.weight"][:290])
    assert torch.equal(wpe, tensors["wpe.weight"])
    assert torch.equal(last, torch.cat([tensors["ln_f.weight"], tensors["ln_f.bias"]]))
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.bias", "attn.c_proj.bias"]
    order += ["ln_2.weight", "ln_2.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"]
    assert torch.equal(vectors[1], torch.cat([tensors[f"h.1.{name}"] for name in order]))
    products = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    for name, matrix in zip(products, (qkv, proj, fc, out), strict=True):
        assert torch.equal(matrix[1], tensors[f"h.1.{name}.weight"].T)


@pytest.mark.parametrize("width", [8, 16, 32, 64, 128])
def test_logits_are_those_of_transformers(width: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 2 * width, "n_positions": 24, "vocab_size": 97}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    generator = torch.Generator().manual_seed(width)
    for parameter in theirs.parameters():  # rounded as the kernels get them; no bias stays 0
        noise = 0.3 * torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(noise).copy_(parameter.data.bfloat16())
    theirs.save_pretrained(tmp_path)
    weights = read_weights(tmp_path, read_config(tmp_path), 97)
    prompt = torch.randint(97, (20,), generator=generator)
    tensors = [tensor.double() for tensor in (*weights.tensors, weights.new_cache())]
    ours = model.prefill(*(*tensors, prompt))
    with torch.no_grad():
        expected = theirs.double()(prompt[None]).logits[0, -1]
    torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-9)


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("form", ["whole", "parts"])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(form: str, text: str, folders: dict[str, Path]) -> None:
    words = vocabulary(folders[form])
    for each in (text, f"Hello world 😀\n\n\tGrüße 日本語 {text}"):
        assert b"".join(map(words.decode, words.encode(each))).decode() == each


def test_both_forms_have_the_same_tokens(folders: dict[str, Path]) -> None:
    first, second = (vocabulary(folder) for folder in folders.values())
    text = f"Hello world, und 😀{END}again"
    tokens = first.encode(text)
    assert tokens == second.encode(text) and len(tokens) < len(text)
    assert first.end == second.end == tokens[-tokens[::-1].index(0) - 1] == 0


def test_half_a_character_is_never_shown(folders: dict[str, Path]) -> None:
    words = vocabulary(folders["whole"])
    sun = words.encode("日")
    assert len(sun) > 1, "its bytes are no longer tokens of their own"
    tokens = [*sun, *words.encode("a"), 0, *sun[:-1]]
    shown = [*generate.texts(tokens, words)]
    assert len(shown) == len(tokens), "a text waits for the next one"
    assert "".join(shown) == "日a"


# ---------------------------------------------------------------- beyond the positions


def little(positions: int) -> Weights:
    tensors = tensors_of(CONFIG)
    p = {name: t[:positions] if name == "wpe.weight" else t for name, t in tensors.items()}
    C = CONFIG["n_embd"]
    vectors = torch.zeros(1, 13 * C).bfloat16()
    matrices = [torch.zeros(1, *s).bfloat16() for s in ((3 * C, C), (C, C), (4 * C, C), (C, 4 * C))]
    last = torch.cat([torch.ones(C), torch.zeros(C)]).bfloat16()
    return Weights((p["wte.weight"], p["wpe.weight"], vectors, last, *matrices), 2)


REFERENCES = SimpleNamespace(prefill_v1_tokens=model.prefill, decode_v2_inside=model.decode)


@pytest.mark.parametrize(("length", "positions"), [(1, 1), (3, 12), (12, 12), (30, 12), (2, 3)])
def test_windows_fit_and_make_every_token(length: int, positions: int) -> None:
    found = [*generate.windows(length, 100, positions)]
    assert sum(steps for _, steps in found) == 100
    for number, (kept, steps) in enumerate(found):
        assert kept >= 1 and steps >= 1 and kept + steps - 1 <= positions
        if number or length > positions:
            assert kept == max(1, positions // 2)
    assert not [*generate.windows(length, 0, positions)]


def test_a_window_slides_without_changing_what_was_written() -> None:
    prompt, way = [5, 7, 9], (2.0, 40, 0.9)
    whole = [*generate.stream(REFERENCES, little(12), prompt, 10, way, 1, 4)]
    slid = [*generate.stream(REFERENCES, little(6), prompt, 30, way, 1, 4)]
    assert len(slid) == 30 and len({*whole}) > 1
    assert slid[:4] == whole[:4]
    kept = [*prompt, *slid[:4]][-3:]
    assert slid[4:8] == [*generate.stream(REFERENCES, little(6), kept, 4, way, 2)]


def test_on_a_gpu_the_rate_has_its_share_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = little(6)
    assert generate.rate_of(weights, 3, 4, 2.0) == "4 tokens in 2.00 s: 2.0 per second"
    C, words, own = 32, 300, 2  # bytes per element
    each = (12 * C * C + 13 * C + (words + 4) * C) * own  # weights, of one layer
    rows = [2, 3, 4, 5, 2, 3]  # of the cache: 6 positions are full after 4 tokens, and 3 stay
    read = sum(each + row * 2 * C * own for row in rows)
    tensor: Any = SimpleNamespace(device=torch.device("cuda"))
    on_gpu = Weights((tensor,), 2)
    monkeypatch.setattr(Weights, "shape", (1, 2, C, words, 6))
    monkeypatch.setattr(Weights, "positions", 6)
    copy = SimpleNamespace(rates={"copy": 4 * read / 1e9})  # GB/s: it takes a quarter of a second
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
    monkeypatch.setattr(generate, "ceilings_of", lambda gpu: None)
    assert generate.rate_of(on_gpu, 3, 6, 0.5) == "6 tokens in 0.50 s: 12.0 per second"
    monkeypatch.setattr(generate, "ceilings_of", lambda gpu: copy)
    assert "6 tokens in 0.50 s: 12.0 per second, 50% of a copy's " in generate.rate_of(
        on_gpu, 3, 6, 0.5
    )


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"activation_function": "relu"}, "activation_function: expected 'gelu_new'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: expected True, got False"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon: expected 1e-05, got 1e-06"),
        ({"model_type": "llama"}, "model_type: expected 'gpt2', got 'llama'"),
        ({"n_head": 3, "n_embd": 72}, "elements per head, got 72 / 3"),
        ({"n_head": 5}, "elements per head, got 32 / 5"),
        ({"n_embd": 4096, "n_head": 64}, "n_embd: expected 1 to 2048, got 4096"),
        ({"n_layer": None}, "n_layer: expected 1 to 1024, got None"),
        ({"n_inner": 100}, "n_inner: expected 4 n_embd = 128, got 100"),
        ({"scale_attn_by_inverse_layer_idx": True}, "expected False, got True"),
    ],
)
def test_what_the_kernels_do_not_compute_is_named(
    changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, {}, **changed)
    with pytest.raises(RefusedError, match=r"config\.json: ") as error:
        read_config(tmp_path)
    assert said in str(error.value)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    short = {name: t for name, t in tensors.items() if name != "h.1.mlp.c_fc.bias"}
    wrong = tensors | {"h.0.attn.c_proj.weight": torch.zeros(32, 31)}
    untied = tensors | {"lm_head.weight": tensors["wte.weight"] + 1}
    for given_tensors, said in (
        (short, "has no tensor h.1.mlp.c_fc.bias"),
        (wrong, r"h.0.attn.c_proj.weight: expected \(32, 32\), got \(32, 31\)"),
        (untied, "lm_head.weight: expected the same as wte.weight"),
    ):
        write_folder(tmp_path, given_tensors)
        with pytest.raises(RefusedError, match=said):
            read_weights(tmp_path, read_config(tmp_path), 300)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(RefusedError, match="is no file in safetensors format"):
        read_weights(tmp_path, read_config(tmp_path), 300)


def test_data_that_lies_elsewhere_or_is_not_finite_is_refused(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    write_folder(tmp_path, tensors | {"ln_f.bias": torch.full((32,), torch.nan)})
    with pytest.raises(RefusedError, match=r"ln_f.bias: expected finite numbers"):
        read_weights(tmp_path, CONFIG, 300)
    write_folder(tmp_path, tensors)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["ln_f.bias"]["data_offsets"] = [0, 128]  # another tensor's
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
    with pytest.raises(RefusedError, match=r"its data is not where the file has it"):
        read_weights(tmp_path, CONFIG, 300)


def test_a_prompt_is_read_whole_whatever_the_tokeniser_was_saved_with(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    made = byte_level_bpe()
    made.enable_truncation(3)
    made.enable_padding(length=40)
    made.save(str(tmp_path / "tokenizer.json"))
    text = "hello world, and again"
    assert vocabulary(tmp_path).encode(text) == vocabulary(folders["whole"]).encode(text)
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RefusedError, match="changes the text 'A'"):
        vocabulary(tmp_path).encode("A")


def test_other_tokenisers_are_refused(tmp_path: Path) -> None:
    made = byte_level_bpe()
    write_folder(tmp_path, {})
    with pytest.raises(RefusedError, match=r"expected tokenizer.json, or vocab.json and merges"):
        vocabulary(tmp_path)
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RefusedError, match=r"at most the 270 tokens .* got 2"):
        vocabulary_of(tmp_path, CONFIG | {"vocab_size": 270})
    text = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(text | {"decoder": None}))
    with pytest.raises(RefusedError, match="expected a byte-level BPE"):
        vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RefusedError, match=r"tokenizer.json: "):
        vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", read_config),
        ("tokenizer.json", lambda folder: vocabulary_of(folder, CONFIG)),
        ("vocab.json", lambda folder: vocabulary_of(folder, CONFIG)),
        ("model.safetensors", lambda folder: read_weights(folder, CONFIG, 300)),
        ("model.safetensors.index.json", lambda folder: read_weights(folder, CONFIG, 300)),
    ],
)
def test_a_pipe_is_refused_by_name_and_not_waited_for(
    name: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    os.mkfifo(tmp_path / name)
    with pytest.raises(RefusedError, match=f"{name}: expected a file$"):
        read(tmp_path)


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, {})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RefusedError, match="python -m pip install tokenizers"):
        vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "-1"], "--temperature: expected 0, or 0.001 to 1000, got '-1'"),
        (["--temperature", "nan"], "--temperature: expected 0, or 0.001 to 1000, got 'nan'"),
        (["--top-k", "-1"], "--top-k: expected 1 to 2^24, or 0 for all, got '-1'"),
        (["--top-p", "1.5"], "--top-p: expected a share from 1e-6 to 1, got '1.5'"),
        (["--tokens", "x"], "--tokens: expected 0 or more, got 'x'"),
        (["--prompt", ""], "--prompt: expected at least one character, got ''"),
        (["--prompt", "é"], "--prompt: 'é' is none of the 65 characters of this model"),
        (["--stop", "ab"], "--stop: expected a text of one token, got 2 tokens"),
        (["--model", "/nowhere"], "--model: expected a GPT-2's folder or a file of day 86, "),
        (["--model", str(ROOT)], f"--model: {ROOT}: expected a folder with config.json"),
        (["--model", str(ROOT / "README.md")], "--model: expected a GPT-2's folder, or a file"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_loaded(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loads(*_: object) -> None:
        raise AssertionError("something was loaded")

    for name in ("from_checkpoint", "read_weights", "operators_of", "detect"):
        monkeypatch.setattr(generate, name, loads)
    with pytest.raises(SystemExit) as ended:
        generate.main(words)
    written = capsys.readouterr()
    assert ended.value.code == 2 and written.out == ""
    assert written.err.count("\n") == 1 and f"days.day100.generate: {said}" in written.err


def test_without_a_model_the_repositorys_speaks_unless_the_folder_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = training.default_model()
    assert small.stat().st_size < 4e6
    weights = generate.model_at(small)[1]("cpu")
    layers, heads, _, words, positions = weights.shape
    assert (layers, heads, words, positions) == (4, 3, 65, 256)
    # It has learned: the next character of its text is likelier than that of a model of chance.
    text = generate.training.tokens_of(generate.training.characters()[0][-257:]).long()
    tensors = [t.double() for t in (*weights.tensors, weights.new_cache())]
    logits = model.prefill(*(*tensors, text[:-1]))
    assert F.cross_entropy(logits[None], text[-1:]) < 4.17  # log(65)
    assert capsys.readouterr().err == ""
    (tmp_path / "gpt.best.checkpoint").write_bytes(small.read_bytes())
    assert training.default_model() == Path("gpt.best.checkpoint")
    assert "gpt.best.checkpoint" in capsys.readouterr().err
