#!/usr/bin/env bash
# Install the compilers and other programs that the tests use, where this is possible: as root, with apt-get, and only
# those that are missing. Otherwise name each one, and what is not tested without it. Never fails: a test that lacks
# its compiler says so itself.
set -uo pipefail

# package | a file or command that shows it is here | what is not tested without it
wanted=(
    "g++|g++|every test that compiles a kernel with GCC"
    "clang-19|clang++-19|kernels compiled with Clang, and kernels for AMD GPUs"
    "libomp-19-dev|/usr/lib/llvm-19/lib/libomp.so|kernels compiled with Clang that use several threads"
    "lld-19|ld.lld-19|kernels linked with LLD, and kernels for AMD GPUs"
    "g++-aarch64-linux-gnu|aarch64-linux-gnu-g++|kernels for 64-bit Arm (NEON)"
    "qemu-user|qemu-aarch64|running kernels for 64-bit Arm on another processor"
    "openssl|openssl|keys and signatures as another program makes and checks them"
    "chromium|chromium|that the pages of reports fit narrow and wide screens"
)

is_here() { [[ "$1" == /* ]] && [[ -e "$1" ]] || command -v "$1" >/dev/null 2>&1; }

missing_rows() {
    local row package shows lost
    for row in "${wanted[@]}"; do
        IFS='|' read -r package shows lost <<<"$row"
        is_here "$shows" || printf '%s|%s\n' "$package" "$lost"
    done
}

mapfile -t missing < <(missing_rows)
if ((${#missing[@]} == 0)); then
    exit 0
fi

if ((EUID == 0)) && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq || echo "system packages: the package lists could not be refreshed; using those that are here" >&2
    for row in "${missing[@]}"; do # one by one: a package that this release lacks must not keep the others out
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${row%%|*}" >/dev/null ||
            echo "system packages: ${row%%|*} could not be installed" >&2
    done
    mapfile -t missing < <(missing_rows)
fi

for row in "${missing[@]}"; do
    echo "system packages: ${row%%|*} is not here; not tested without it: ${row#*|}" >&2
done
exit 0
