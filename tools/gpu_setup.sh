#!/bin/bash
# On a machine without an index of packages: wheels from .whl, this tree as the package. Source it.
python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site .whl/*.whl 2>/dev/null
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
mkdir -p "/tmp/site/tokitai-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: tokitai\nVersion: %s\n' "$version" > "/tmp/site/tokitai-$version.dist-info/METADATA"
export PYTHONPATH=src:.:/tmp/site PYTHONUNBUFFERED=1
