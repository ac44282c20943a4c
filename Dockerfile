# `memory serve` for a team: docs/server.md, docker-compose.server.yml
FROM python:3.11-slim

LABEL io.modelcontextprotocol.server.name="io.github.OWNER/memories"

WORKDIR /build
COPY pyproject.toml requirements-server.lock README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir --require-hashes -r requirements-server.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home --uid 10001 memory && install -d -m 700 -o memory -g memory /data

USER memory
WORKDIR /data
ENV MEMORY_HOME=/data
EXPOSE 8765
ENTRYPOINT ["memory"]
CMD ["serve", "--host", "0.0.0.0"]
