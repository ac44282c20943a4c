"""Code that the other packages share: times, ids, durable files, HTTP, deadlines, usage events."""
