"""Runs in the other systems' virtual environment, started by `bench/retrieval/systems.py`; prints a
line for each question.
"""

import json
import sys
from pathlib import Path

import chromadb
import numpy as np
from chromadb.config import Settings


def main() -> None:
    """Store the sessions of each pool in a collection, ask its questions, and print [pool,
    question, sessions].
    """
    folder, depth = Path(sys.argv[1]), int(sys.argv[2])
    client = chromadb.PersistentClient(
        str(folder / "chroma"), settings=Settings(anonymized_telemetry=False)
    )
    for number in range(len(list(folder.glob("*.npz")))):
        with np.load(folder / f"{number}.npz") as tables:
            sessions, questions = tables["sessions"], tables["questions"]
        if not len(questions):
            continue
        collection = client.create_collection(
            "sessions", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        collection.add(ids=[str(at) for at in range(len(sessions))], embeddings=sessions)
        found = collection.query(
            query_embeddings=questions, n_results=min(depth, len(sessions)), include=[]
        )
        for at, ids in enumerate(found["ids"]):
            print(json.dumps([number, at, [int(name) for name in ids]]))
        client.delete_collection("sessions")


if __name__ == "__main__":
    main()
