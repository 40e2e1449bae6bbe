"""The modules of the page that watches a job, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import shadowsync

PAGE = Path(shadowsync.__file__).resolve().parent / "watch" / "page" / "static"
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node runs the page's JavaScript")


def on_page(folder: Path, script: str, *modules: str, before: str = "") -> Any:
    """What a script that returns something gives, with these modules of the page, by their names."""
    for file in PAGE.glob("*.js"):
        shutil.copy(file, folder / file.name)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    places = {name: json.dumps((folder / f"{name}.js").as_uri()) for name in modules}
    loaded = "".join(f"const {name} = await import({place});\n" for name, place in places.items())
    whole = f"{before}{loaded}console.log(JSON.stringify(await (async () => {{ {script} }})()));"
    done = subprocess.run(
        ["node", "--input-type=module", "-e", whole], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
