"""What every other room uses: times, ids, durable files, HTTP, deadlines, figures of operations."""
