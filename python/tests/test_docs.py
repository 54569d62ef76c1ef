"""Runs the code blocks of README.md and of every page under docs/.

Per page, `console` and `python` blocks run in order in one temporary directory, as a reader would type them:

- `console`: the lines after `$` (and their continuations) run in bash and must succeed. Output lines are not compared.
- `python`: doctest if the block has `>>>`, otherwise plain code. All blocks of a page share their variables.

An HTML comment above a block changes that:

- `<!-- no-run: reason -->`: the block is not run. The reason is required.
- `<!-- background -->`: a server. It runs until the page ends; the next block starts when it answers on its port.
- `<!-- fails -->`: the last command must fail.
- `<!-- needs: MODULE -->`, anywhere on a page: the page is skipped where this module is not installed.
- `<!-- file: NAME -->`: the block, of any language, is not run but saved as the file NAME in that directory.

Port 8501, the default of `openfleet serve`, becomes a free port, so that pages can be tested side by side.
"""

import doctest
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- *(?P<mark>[^>]*?) *-->\n+)?```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```", re.S | re.M)
SECONDS = 300


@dataclass
class Block:
    page: Path
    line: int
    language: str
    mark: str
    body: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start("body")), found["language"], found["mark"] or "", found["body"])
        for found in BLOCK.finditer(text)
    ]


def commands(block: Block) -> str:
    """The commands of a `console` block: lines after `$`, with those that continue them."""
    taken: list[str] = []
    continues = False
    for line in block.body.splitlines():
        if line.startswith("$ "):
            taken.append(line[2:])
        elif continues:
            taken.append(line)
        else:
            continue
        so_far = "\n".join(taken)
        continues = line.endswith("\\") or so_far.count("'") % 2 == 1 or so_far.count('"') % 2 == 1
    return "\n".join(taken)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Reader:
    """Types the blocks of one page."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.servers: list[subprocess.Popen[bytes]] = []
        self.names: dict[str, object] = {"__name__": "__main__"}
        (directory / "examples").symlink_to(ROOT / "examples")
        scripts = sysconfig.get_path("scripts")
        self.environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    def run(self, block: Block) -> None:
        if block.mark.startswith("file: "):
            (self.directory / block.mark.removeprefix("file: ")).write_text(block.body)
        elif block.language == "console":
            self.run_console(block)
        elif block.language == "python":
            self.run_python(block)

    def bash(self, block: Block, script: str) -> "subprocess.Popen[bytes]":
        script = script.replace("8501", str(self.port)).replace(
            "openfleet serve ", f"openfleet serve --listen 127.0.0.1:{self.port} "
        )
        # Its own process group, so that a background server ends together with its children.
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run_console(self, block: Block) -> None:
        script = commands(block)
        assert script, f"{block.name}: a console block has lines that begin with `$ `"
        process = self.bash(block, script)
        if block.mark == "background":
            self.servers.append(process)
            self.wait_for_port(block, process)
            return
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"{block.name} took more than {SECONDS} s\n{script}\n{output.decode()}") from None
        failed = process.returncode != 0
        assert failed == (block.mark == "fails"), f"{block.name}\n{script}\n{output.decode()}"

    def wait_for_port(self, block: Block, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        output = process.communicate()[0].decode() if process.poll() is not None else ""
        raise AssertionError(f"{block.name}: the server did not start\n{output}")

    def run_python(self, block: Block) -> None:
        if ">>>" not in block.body:
            code = "\n" * block.line + block.body.replace("8501", str(self.port))
            exec(compile(code, str(block.page), "exec"), self.names)
            return
        test = doctest.DocTestParser().get_doctest(block.body, self.names, block.name, str(block.page), block.line)
        told: list[str] = []
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        doctest.DocTestRunner(verbose=False, optionflags=flags).run(test, out=told.append, clear_globs=False)
        self.names.update(test.globs)
        assert not told, "".join(told)

    def close(self) -> None:
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(30)


def runs(block: Block) -> bool:
    if block.mark.startswith("file: "):
        return True
    return block.language in ("console", "python") and not block.mark.startswith("no-run")


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(runs, blocks(page)))], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_unmodified(page, tmp_path, monkeypatch):
    for module in re.findall(r"<!-- needs: (\w+) -->", page.read_text()):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


def run_page(page: Path, directory: Path) -> None:
    reader = Reader(directory)
    # The next page does not see the variables of this one, nor its programs and scopes of `openfleet.static`.
    from openfleet import static

    fresh = static.program_guard(static.Program(), static.Program()), static.unique_name.guard()
    try:
        with fresh[0], fresh[1], static.scope_guard(static.Scope()):
            for block in filter(runs, blocks(page)):
                reader.run(block)
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_do_not_run_say_why(page):
    for block in blocks(page):
        if block.mark.startswith("no-run"):
            assert re.fullmatch(r"no-run: .{5,}", block.mark), f"{block.name}: write `<!-- no-run: reason -->`"


def test_a_console_block_is_parsed_into_commands_without_output():
    body = "$ a \\\n    b\noutput\n$ c 'two\nlines'\nmore output\n"
    assert commands(Block(ROOT, 1, "console", "", body)) == "a \\\n    b\nc 'two\nlines'"


COMMANDS = ROOT / "docs" / "reference" / "commands.md"
OPTION = r"(?:-\w, )?(--[a-z0-9-]+)"


def section(title: str) -> str:
    """The text of commands.md below a heading of the second level."""
    return re.split(r"^## ", COMMANDS.read_text().split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


@pytest.mark.parametrize("title", re.findall(r"^## (.*)$", COMMANDS.read_text() if COMMANDS.exists() else "", re.M))
def test_the_command_reference_lists_the_options_of_help(title):
    program, *verbs = title.split()
    scripts = sysconfig.get_path("scripts")
    run = subprocess.run([os.path.join(scripts, program), *verbs, "--help"], capture_output=True, text=True, check=True)
    told = set(re.findall(rf"^ +{OPTION}", run.stdout, re.M)) - {"--help", "--version"}
    listed = set(re.findall(rf"^\| `{OPTION}", section(title), re.M))
    if "options **Job** and **Script** of `fleetrun`" in section(title):
        for group in ("Job", "Script"):
            table = section("fleetrun").split(f"**{group}**", 1)[1].split("**", 1)[0]
            listed |= set(re.findall(rf"^\| `{OPTION}", table, re.M))
    assert listed == told


def test_the_command_reference_lists_every_command():
    listed = re.findall(r"^## (.*)$", COMMANDS.read_text(), re.M)
    scripts = sysconfig.get_path("scripts")
    for program in ("openfleet", "fleetrun"):
        run = subprocess.run([os.path.join(scripts, program), "--help"], capture_output=True, text=True, check=True)
        block = run.stdout.split("Commands:\n", 1)[1].split("\n\n", 1)[0]
        for verb in set(re.findall(r"^  ([a-z0-9]+) ", block, re.M)) - {"help"}:
            assert any(title.startswith(f"{program} {verb}") for title in listed), f"`{program} {verb}` is missing"


def test_python_names_of_the_names_page_exist():
    import openfleet.models
    import openfleet.ray
    from openfleet import fleet, static

    roots = {"openfleet": openfleet, "fleet": fleet, "static": static}
    page = (ROOT / "docs" / "reference" / "names.md").read_text()
    for name in sorted(set(re.findall(r"`((?:openfleet|fleet|static)\.[A-Za-z_.]*[A-Za-z_])", page))):
        found: object = roots[name.split(".")[0]]
        for part in name.split(".")[1:]:
            assert hasattr(found, part), f"names.md: `{name}` does not exist"
            found = getattr(found, part)


def test_every_promise_that_a_test_cites_is_on_the_promises_page():
    page = (ROOT / "docs" / "concepts" / "promises.md").read_text()
    promised = set(re.findall(r"^\| (P\d+) \|", page, re.M))
    sources = [*(ROOT / "crates").rglob("*.rs"), *(ROOT / "python" / "tests").glob("*.py")]
    cited = {number for source in sources for number in re.findall(r"\bP\d+\b", source.read_text())}
    assert cited <= promised
    for path in re.findall(r"`((?:crates|python|fuzz)/[^`]*)`", page):
        assert (ROOT / path).exists(), f"promises.md: `{path}` does not exist"


def test_the_rust_lines_of_the_readme_are_those_of_the_example():
    example = (ROOT / "crates" / "fleet" / "examples" / "own_model.rs").read_text()
    (block,) = [block for block in blocks(ROOT / "README.md") if block.language == "rust"]
    for line in block.body.splitlines():
        assert line.strip() in example
