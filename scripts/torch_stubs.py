"""Build empty stand-ins for the CUDA libraries that a CUDA build of torch links, so that it runs on the CPU without them.

``python scripts/torch_stubs.py SITE_PACKAGES FOLDER`` fills FOLDER with one shared library for each missing one; put FOLDER on
LD_LIBRARY_PATH. Each library defines the symbols, with their versions, that torch's libraries import from it. A call to such a
function returns 100 (``cudaErrorNoDevice``) or a text. It needs gcc, nm, readelf and ldconfig. `make check-torch` uses it to test
many versions of torch without several GB of CUDA for each. Its libraries are never shipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

#: What functions return: the text of an error where the name ends in String, else cudaErrorNoDevice.
_ANSWERS = {"String": '(long)"no CUDA here"', "orName": '(long)"no CUDA here"'}


def run(*command: str) -> str:
    """Return what a command prints. Raises ``CalledProcessError`` if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(slots=True, kw_only=True)
class Imports:
    """What a set of libraries needs from outside: libraries, their symbol versions, and symbols by version."""

    libraries: set[str] = field(default_factory=set)
    versions: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    undefined: set[tuple[str, str]] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)

    def read(self, library: Path) -> None:
        """Add one library's imports and exports."""
        self.libraries |= set(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", str(library))))
        source = ""
        for line in run("readelf", "-V", str(library)).splitlines():
            if of := re.search(r"File: (\S+)", line):
                source = of[1]
            elif (name := re.search(r"Name: (\S+)\s+Flags", line)) and source:
                self.versions[source][name[1]] = None
        for line in run("nm", "-D", "--with-symbol-versions", str(library)).splitlines():
            kind, symbol = line.split()[-2:]
            symbol, _, version = symbol.replace("@@", "@").partition("@")
            if kind in "Uw":
                self.undefined.add((symbol, version))
            else:
                self.defined.add(symbol)


def stub(soname: str, folder: Path, symbols: set[str], versions: dict[str, list[str]]) -> None:
    """Compile one library that defines ``symbols``, and those of ``versions`` under their versions."""
    names = sorted(symbols.union(*versions.values()))
    source, script = folder / "stub.c", folder / "stub.map"
    source.write_text("".join(f"long {name}(void) {{ return {_ANSWERS.get(name[-6:], '100')}; }}\n" for name in names))
    blocks = ("".join(f" {name};" for name in own) for own in versions.values())
    script.write_text("".join(f"{version} {{ global:{block} }};\n" for version, block in zip(versions, blocks, strict=True)))
    options = [f"-Wl,-soname,{soname}"]
    if versions:
        options.append(f"-Wl,--version-script={script}")
    run("gcc", "-shared", "-fPIC", "-fno-builtin", "-w", *options, "-o", str(folder / soname), str(source))


def main(site_packages: Path, folder: Path) -> None:
    """Write a stand-in for each library that torch needs and this machine lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    own = [*(site_packages / "torch/lib").glob("*.so*"), *(site_packages / "torch").glob("_C*.so")]
    imports = Imports()
    for library in own:
        imports.read(library)
    present = {library.name for library in own} | set(re.findall(r"^\s*(\S+) \(", run("/sbin/ldconfig", "-p"), re.MULTILINE))
    missing = sorted(imports.libraries - present)
    # A symbol without a version names no library, and the loader takes it from any: the first stand-in defines them all. Those of
    # C++ are left out, except the few that CUDA libraries export: torch and libstdc++ define the others.
    loose = {name for name, version in imports.undefined if not version and name not in imports.defined}
    loose = {name for name in loose if not name.startswith("_Z") or re.search("cudnn|nvshmem", name)}
    for soname in missing:
        versions: dict[str, list[str]] = {version: [] for version in imports.versions.get(soname, {})}
        for name, version in sorted(imports.undefined):
            if version in versions:
                versions[version].append(name)
        stub(soname, folder, loose if soname == missing[0] else set(), versions)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
