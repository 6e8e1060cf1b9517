#!/usr/bin/env bash
# Builds ggml once into a prefix, from the llama-cpp-python source archive on PyPI (Debian has no ggml package).
# Usage: cmake/fetch_ggml.sh PREFIX     (PREFIX/lib/cmake/ggml exists afterwards)
# OSCAR_GGML_ARCHIVE=FILE   takes the archive from FILE instead of downloading it.
# OSCAR_GGML_NATIVE=OFF     builds for the baseline x86-64 instead of this machine's processor.
set -euo pipefail
prefix=${1:?usage: fetch_ggml.sh PREFIX}
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
native=${OSCAR_GGML_NATIVE:-ON}
stamp="$prefix/oscar-ggml-stamp"
want="$version native=$native cpu=$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null | sha256sum | cut -c1-12)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

mkdir -p "$prefix"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=${OSCAR_GGML_ARCHIVE:-}
if [ -z "$archive" ]; then
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
    --dest "$work" "llama-cpp-python==$version" >/dev/null 2>&1 ||
    python3 -m pip download --disable-pip-version-check --no-deps --no-binary :all: --dest "$work" "llama-cpp-python==$version"
  archive=$(ls "$work"/*.tar.gz)
fi
echo "$sha256  $archive" | sha256sum --check --quiet || { echo "fetch_ggml: $archive: wrong SHA-256" >&2; exit 1; }
tar -xzf "$archive" -C "$work" --wildcards '*/vendor/llama.cpp/ggml/*' '*/vendor/llama.cpp/LICENSE'
source=$(echo "$work"/*/vendor/llama.cpp/ggml)
# The archive lacks the pkg-config template that ggml's install step asks for.
[ -f "$source/ggml.pc.in" ] || printf 'Name: ggml\nDescription: ggml\nVersion: 0\n' > "$source/ggml.pc.in"
generator=(); command -v ninja >/dev/null && generator=(-G Ninja)
cmake "${generator[@]}" -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
  -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DGGML_NATIVE="$native" -DGGML_OPENMP=OFF -DGGML_CUDA=OFF -DGGML_LLAMAFILE=ON -DGGML_CPU_REPACK=OFF \
  -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF > "$work/configure.log" || { cat "$work/configure.log" >&2; exit 1; }
cmake --build "$work/build" --target install --parallel "$(nproc)" > "$work/build.log" || { tail -50 "$work/build.log" >&2; exit 1; }
mkdir -p "$prefix/share/licenses/ggml" && cp "$source/../LICENSE" "$prefix/share/licenses/ggml/"
echo "$want" > "$stamp"
