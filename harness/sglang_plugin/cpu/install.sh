#!/usr/bin/env bash
# Make an environment in which SGLang 0.5.17 runs on a CPU, with this project's DDTREE plugin. For tests and clients.
#
#   install.sh FOLDER [PYTHON]      PYTHON: a Python 3.11, default python3.11
#
# About 2.3 GB and 90 s. sglang's own metadata asks for CUDA builds and kernels, so the exact import closure is installed
# without dependencies, and stand-ins take the place of what is imported and has no CPU build. Nothing needs PYTHONPATH
# afterwards; the server wants SGLANG_USE_CPU_ENGINE=1 and the options in docs/sglang.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../../.." && pwd)
folder=${1:?usage: install.sh FOLDER [PYTHON]}
python=${2:-python3.11}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the pins are for Python 3.11, this is " + sys.version.split()[0])'
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --no-deps -r "$here/requirements.txt"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp -R "$here/stand_ins/." "$site/"
echo 'import ddtree_torchvision_cpu' > "$site/ddtree_torchvision_cpu.pth"
mkdir -p "$site/sglang_kernel-0.4.5.dist-info" # the distribution whose version SGLang asks for
printf 'Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.5\nSummary: CPU stand-in, not the real package\n' \
  > "$site/sglang_kernel-0.4.5.dist-info/METADATA"
# The newest release beside it, not in it: that the plugin registers there is tested, on the same dependencies.
"$folder/bin/python" -m pip install --quiet --no-deps --target "$folder/newest" sglang==0.5.23
# The editable install is two files, written here: a build would want setuptools, and this project's dependencies have no
# place in this environment.
"$folder/bin/python" "$here/link_project.py" "$project" "$site"
"$folder/bin/python" -c 'import torchvision, sglang.srt.plugins; from importlib.metadata import entry_points; assert entry_points(group="sglang.srt.plugins")'
