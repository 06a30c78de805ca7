"""Check that the one wheel in a directory has the package, its type marker and nothing else.

python .ci/wheel.py DIRECTORY
"""

import sys
import zipfile
from pathlib import Path


def main(directory: str) -> int:
    (wheel,) = Path(directory).glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    foreign = sorted(top for top in tops if top != "threadsched" and not top.endswith(".dist-info"))
    missing = sorted({"threadsched/__init__.py", "threadsched/py.typed"} - set(names))
    modules = {f"threadsched/{path.relative_to('threadsched').as_posix()}" for path in sources()}
    missing += sorted(modules - set(names) - set(missing))
    for problem in [f"missing: {name}" for name in missing] + [f"does not belong: {top}" for top in foreign]:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if not (missing or foreign):
        print(f"{wheel.name}: {len(names)} files, py.typed among them")
    return 1 if missing or foreign else 0


def sources() -> list[Path]:
    return list(Path("threadsched").rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
