"""Reads a GPT-2 as Hugging Face's programs save it: a folder with its sizes, weights and tokens.

config.json is checked first, then the tokeniser is read: both are small. What the kernels do not
compute is refused by its name there.
"""

import json
import mmap
from pathlib import Path

import torch

from .weights import RefusedError, Vocabulary, Weights, packed

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WIDTHS = (8, 16, 32, 64, 128)  # elements per head: day 96's arguments.cuh
LIMITS = {"n_layer": 1 << 10, "n_embd": 2048, "n_positions": 1 << 20, "vocab_size": 1 << 20}
# What the kernels compute, first where config.json does not say.
COMPUTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of one formula
    "layer_norm_epsilon": (1e-5,),
    "tie_word_embeddings": (True,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def existing_file(path):
    """Return True if there is a file. Raise RefusedError for what a program would wait for, such as
    a pipe, and for a folder."""
    if path.exists() and not path.is_file():
        raise RefusedError(f"{path}: expected a file")
    return path.is_file()


def read_json(path):
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RefusedError(f"{path}: expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError(f"{path}: expected an object, got {type(found).__name__}")
    return found


def read_config(folder):
    """Return the folder's config.json. Raises RefusedError for a model that the kernels do not
    compute."""
    file = Path(folder) / "config.json"
    if not existing_file(file):
        raise RefusedError(f"{folder}: expected a folder with config.json, as save_pretrained does")
    config = read_json(file)
    for name, allowed in COMPUTED.items():
        if (value := config.get(name, allowed[0])) not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise RefusedError(f"{file}: {name}: expected {expected}, got {value!r}")
    for name in ("n_head", *LIMITS):
        most = LIMITS.get(name, LIMITS["n_embd"])
        if not isinstance(value := config.get(name), int) or not 1 <= value <= most:
            raise RefusedError(f"{file}: {name}: expected 1 to {most}, got {value!r}")
    heads, channels = config["n_head"], config["n_embd"]
    if channels % heads or channels // heads not in WIDTHS:
        raise RefusedError(
            f"{file}: n_embd / n_head: expected {', '.join(map(str, WIDTHS))} elements per head, "
            f"got {channels} / {heads}"
        )
    if config.get("n_inner") not in (None, 4 * channels):
        raise RefusedError(
            f"{file}: n_inner: expected 4 n_embd = {4 * channels}, got {config['n_inner']!r}"
        )
    return config


# ---------------------------------------------------------------- tokens


def byte_alphabet():
    """Return the byte of each of the 256 characters by which GPT-2's tokens are spelt: a byte that
    is a visible character of Latin-1 is that one, the others follow from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(others)}


def read_tokenizer(folder):
    """Return the tokeniser (of the package `tokenizers`) in tokenizer.json, or of vocab.json and
    merges.txt, and the file that it is from."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise RefusedError(
            f"{folder}: its tokens need a package: python -m pip install tokenizers"
        ) from None
    whole, vocab, merges = (
        Path(folder) / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
    )
    file = whole if existing_file(whole) else vocab
    if file == vocab and not (existing_file(vocab) and existing_file(merges)):
        raise RefusedError(f"{folder}: expected tokenizer.json, or vocab.json and merges.txt")
    if file == whole:
        model = read_json(whole).get("model")
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if isinstance(model, dict) and model.get(name):
                raise RefusedError(
                    f"{file}: {name}: expected none, as GPT-2 has, got {model[name]!r}"
                )
    try:
        if file == whole:
            found = tokenizers.Tokenizer.from_file(str(whole))
            found.no_truncation()
            found.no_padding()
        else:
            found = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
            found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            found.decoder = tokenizers.decoders.ByteLevel()
            if found.token_to_id("<|endoftext|>") is not None:
                found.add_special_tokens(["<|endoftext|>"])
    except Exception as error:  # the package raises no narrower one
        raise RefusedError(f"{file}: {error}") from None
    if not isinstance(found.model, tokenizers.models.BPE) or not isinstance(
        found.decoder, tokenizers.decoders.ByteLevel
    ):
        raise RefusedError(f"{file}: expected a byte-level BPE, as GPT-2 has")
    found.model.dropout = None
    return found, file


def vocabulary_of(folder, config):
    """Return the Vocabulary, and how many tokens it has: the model may have more words than that.
    Raises RefusedError for a tokeniser that is not a byte-level BPE or has more tokens than the
    model has words."""
    tokenizer, file = read_tokenizer(folder)
    alphabet, tokens = byte_alphabet(), tokenizer.get_vocab()
    added = {token: each.content for token, each in tokenizer.get_added_tokens_decoder().items()}
    if missing := [c for c in alphabet if c not in tokens]:
        raise RefusedError(f"{file}: expected a token for each byte, {len(missing)} have none")
    size = max(tokens.values()) + 1
    if size > config["vocab_size"]:
        raise RefusedError(
            f"{file}: expected at most the {config['vocab_size']} tokens that vocab_size of "
            f"config.json says, got {size}"
        )
    spelt = [b""] * size
    for text, token in tokens.items():
        if token in added:
            spelt[token] = added[token].encode()
        elif set(text) <= alphabet.keys():
            spelt[token] = bytes(alphabet[c] for c in text)
        else:
            raise RefusedError(f"{file}: expected tokens made of bytes, got {text!r}")

    def encode(text):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RefusedError(f"expected text in UTF-8: {error}") from None
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        if b"".join(spelt[token] for token in tokens) != text.encode():
            raise RefusedError(
                f"{file}: changes the text {text!r}, which GPT-2's tokeniser does not"
            )
        return tokens

    end = config.get("eos_token_id")
    is_token = isinstance(end, int) and end < size
    return Vocabulary(encode, spelt.__getitem__, end if is_token else None), size


# ---------------------------------------------------------------- weights


def weight_files(folder):
    """Return the folder's files in safetensors format: one, or those that an index names."""
    one, index = (Path(folder) / f"model.safetensors{end}" for end in ("", ".index.json"))
    if existing_file(one):
        return [one]
    if not existing_file(index):
        raise RefusedError(f"{folder}: expected model.safetensors, or its index and parts")
    parts = read_json(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
        raise RefusedError(f"{index}: expected weight_map, from tensors to files")
    files = [Path(folder) / name for name in sorted(set(parts.values()))]
    if missing := [file.name for file in files if not existing_file(file)]:
        raise RefusedError(f"{folder}: expected {missing[0]}, which its index names")
    return files


def read_safetensors(path):
    """Return tensors by name: 8 bytes with the length of the header, a header in JSON, and the
    data, which is read where a tensor is used. Raises RefusedError for another file."""
    try:
        with open(path, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        start = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(bytes(whole[8:start]))
        header.pop("__metadata__", None)
        found, last = {}, 0
        for name, entry in sorted(header.items(), key=lambda each: each[1]["data_offsets"]):
            if entry["dtype"] in DTYPES:
                begin, end = entry["data_offsets"]
                if not last <= begin <= end <= len(whole) - start or any(
                    size < 0 for size in entry["shape"]
                ):
                    raise ValueError(f"{name}: its data is not where the file has it")
                last = end
                data = whole[start + begin : start + end]
                flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]])
                found[name.removeprefix("transformer.")] = flat.view(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise RefusedError(f"{path}: is no file in safetensors format: {error}") from None
    return found


def read_weights(folder, config, size):
    """Return the Weights, rounded to bf16; of the table the first `size` rows, since the others
    have no token and must not be drawn. GPT-2's products are stored as (columns in, columns out).

    Raises RefusedError where a tensor is missing or has another shape than config.json says, or
    where lm_head is not the table of words.
    """
    p = {}
    for file in weight_files(folder):
        p |= read_safetensors(file)
    C, words = config["n_embd"], config["vocab_size"]

    def tensor(name, *shape):
        if name not in p:
            raise RefusedError(f"{folder}: has no tensor {name} in F32, F16 or BF16")
        if p[name].shape != shape:
            raise RefusedError(f"{folder}: {name}: expected {shape}, got {tuple(p[name].shape)}")
        if not p[name].isfinite().all():
            raise RefusedError(f"{folder}: {name}: expected finite numbers")
        return p[name].bfloat16()

    def norm(name):
        return [tensor(f"{name}.{part}", C) for part in ("weight", "bias")]

    table = tensor("wte.weight", words, C)
    if "lm_head.weight" in p and not torch.equal(p["lm_head.weight"], p["wte.weight"]):
        raise RefusedError(f"{folder}: lm_head.weight: expected the same as wte.weight")
    products = {"attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C)}
    products |= {"mlp.c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}
    layers = []
    for i in range(config["n_layer"]):
        h = f"h.{i}."
        qkv, proj, fc, out = (tensor(f"{h}{n}.bias", s[1]) for n, s in products.items())
        matrices = [tensor(f"{h}{n}.weight", *s).T for n, s in products.items()]
        layers.append(([*norm(h + "ln_1"), qkv, proj, *norm(h + "ln_2"), fc, out], matrices))
    places = tensor("wpe.weight", config["n_positions"], C)
    return Weights(packed(table[:size], places, norm("ln_f"), layers), config["n_head"])
