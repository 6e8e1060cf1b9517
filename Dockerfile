# oscar serve in a container. Build: docker build -t oscar . ; run: docker run -p 127.0.0.1:8080:8080 -v MODELS:/models oscar -m /models/FILE.gguf
# A calibrated method needs the profile beside the model (oscar calibrate); --kv int2:hadamard needs none.
FROM debian:12 AS build
WORKDIR /src
COPY . .
RUN scripts/install_packages build && \
    cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DOSCAR_BUILD_TESTS=OFF && \
    cmake --build /build --target oscar

FROM debian:12-slim
RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates libcurl4 libfmt9 libhwy1 libpcre2-8-0 libssl3 libutf8proc2 libzmq5 zlib1g && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --system --uid 990 --home-dir /nonexistent --shell /usr/sbin/nologin oscar
COPY --from=build /build/bin/oscar /usr/local/bin/oscar
USER oscar
EXPOSE 8080
HEALTHCHECK --interval=10s --start-period=60s CMD ["/usr/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
# Inside the container every address is the container's own; what is published outside is the choice of `docker run -p`.
ENTRYPOINT ["/usr/local/bin/oscar", "serve", "--host", "0.0.0.0", "--insecure-open"]
