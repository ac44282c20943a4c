"""What every store on a document server shares; Chroma and Qdrant are drivers of it."""
