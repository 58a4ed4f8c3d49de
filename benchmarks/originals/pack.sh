#!/bin/bash
# Packs what build.sh built, so that it runs on another Linux machine of the same architecture, without installing
# anything there and whatever its C library is.
#
#   benchmarks/originals/pack.sh BUILD FOLDER FILE.tar.xz
#
# FOLDER is where it will be on the other machine: `mkdir -p FOLDER && tar xf FILE.tar.xz -C FOLDER` there, and then
# `--build FOLDER`. The Python of BUILD/venv, its packages, both TVMs and every library they load, the C library and the
# loader included, come along; the Python names them by their place in FOLDER. Needs patchelf, binutils and xz.
set -euo pipefail
build=$(realpath "$1")
folder=$2
file=$(realpath -m "$3")
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT

python=$(realpath "$build/venv/bin/python")
version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
mkdir -p "$staged/venv/bin" "$staged/venv/lib/$version" "$staged/lib"
cp "$python" "$staged/venv/bin/python"
rsync -a --exclude __pycache__ --exclude /test --exclude /idlelib --exclude /ensurepip --exclude /lib2to3 \
  --exclude /tkinter --exclude '/config-*' --exclude site-packages \
  "$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/" "$staged/venv/lib/$version/"
# What TVM's tuner does not load stays here.
rsync -a --exclude __pycache__ --exclude tests --exclude /pip --exclude '/pandas*' --exclude '/sklearn*' \
  --exclude '/scikit_learn*' --exclude /onnx/backend/test \
  "$build/venv/lib/$version/site-packages" "$staged/venv/lib/$version/"
for tree in ansor code-diffusion; do
  rsync -a --exclude __pycache__ --exclude '*.so' "$build/$tree" "$staged/"
  strip -o "$staged/$tree/libtvm.so" "$build/$tree/libtvm.so"
done

# XGBoost's code for GPUs, most of its size, is not run.
booster=$(find "$staged" -name libxgboost.so)
read -r size offset < <(objdump -h "$booster" | awk '$2 == ".nv_fatbin" { print "0x" $3, "0x" $6 }') || true
if [ -n "${size:-}" ]; then
  dd if=/dev/zero of="$booster" bs=1M seek=$((offset)) count=$((size)) oflag=seek_bytes iflag=count_bytes conv=notrunc \
    status=none
fi

# Every library that any of these loads, by its name.
find "$staged" -type f \( -name '*.so' -o -name '*.so.*' -o -name python \) -print0 | xargs -0 -n 1 ldd 2>/dev/null |
  awk '$3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' | sort -u | while read -r library; do
  case $library in "$staged"/*) ;; *) cp -n "$(realpath "$library")" "$staged/lib/$(basename "$library")" ;; esac
done
loader=$(basename "$(patchelf --print-interpreter "$python")")
# An old-fashioned path, which also holds for what the libraries load in turn, unless they have one of their own.
find "$staged" -type f -name '*.so*' | while read -r library; do
  case $(patchelf --print-rpath "$library" 2>/dev/null) in '' | *ORIGIN*) ;; *) patchelf --remove-rpath "$library" ;; esac
done
patchelf --force-rpath --set-rpath "$folder/lib" --set-interpreter "$folder/lib/$loader" "$staged/venv/bin/python"
# The two TVMs differ little: the dictionary reaches from one to the other.
XZ_OPT="--lzma2=preset=6,dict=256MiB" tar -C "$staged" --sort=name --owner=0 --group=0 -caf "$file" .
ls -l "$file"
