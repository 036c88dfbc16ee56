#!/usr/bin/env bash
# Copies the checkout without what git ignores into a folder, to compile the operators there in another way. Files keep their
# times, so that only what changed is compiled again.
#
# usage: tests/ops/copy_checkout.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
rm -rf "$1/bioattn_mm" "$1/tests"
git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --create --null --files-from - | tar --extract --directory "$1"
