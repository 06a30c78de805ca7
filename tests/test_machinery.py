"""The test machinery itself: scripts, sampling, and the thread-leak check do notice what they are for."""

import os
import random
import re
import runpy
import sys
import time

import pytest

from tests import support

pytest_plugins = ["pytester"]


def test_rng_depends_on_seed_and_name_alone(rng: random.Random, request: pytest.FixtureRequest):
    """A test's generator can be had again from the seed and the test's name."""
    assert rng.random() == support.rng(request.node.nodeid).random()
    assert support.rng("a").random() != support.rng("b").random()


def test_sample_keeps_order_and_repeats(monkeypatch: pytest.MonkeyPatch):
    """A sample is a repeatable subsequence, and everything in an exhaustive session."""
    monkeypatch.delenv("THREADSCHED_PROOF", raising=False)
    cases = list(range(1000))
    drawn = support.sample(cases, 20)
    assert drawn == support.sample(cases, 20) == sorted(set(drawn))
    assert len(drawn) == 20
    assert drawn != support.sample(cases, 20, name="another")
    assert support.sample(cases, 2000) == cases
    monkeypatch.setenv("THREADSCHED_PROOF", "1")
    assert support.sample(cases, 20) == cases


def test_what_samples_is_in_the_proof():
    """Every file of tests that does less in an ordinary session has something that the exhaustive one selects."""
    samples = re.compile(r"\b(exhaustive|sample|size)\(")
    drawn = re.compile(r"^(@hypothesis\.given|@given|Test\w+ = .*TestCase)", re.MULTILINE)  # marked by Hypothesis
    for path in sorted((support.ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if samples.search(source):
            selected = "mark.proof" in source or drawn.search(source)
            assert selected, f"{path}: mark what samples with pytest.mark.proof"


def test_parts_of_the_proof_are_disjoint_and_there():
    """No test stands in two parts of the proof, and what a part names exists; the last part has all others."""
    proof = runpy.run_path(str(support.ROOT / ".ci" / "proof.py"))
    named = [path for paths in proof["PARTS"].values() for path in paths]
    assert len(set(named)) == len(named)
    assert [path for path in named if not (support.ROOT / path).exists()] == []
    assert proof["parts"]()[proof["REST"]] == ["tests", *[f"--ignore={path}" for path in named]]


@pytest.mark.subprocess
def test_proof_names_the_parts_that_failed(capfdbinary: pytest.CaptureFixture[bytes]):
    """Each part's output is shown in one piece, the seed is the same for all, and a failed one is named."""
    proof = runpy.run_path(str(support.ROOT / ".ci" / "proof.py"))
    say = "import os, sys; print(os.environ['THREADSCHED_SEED'], os.environ['THREADSCHED_PROOF'], flush=True); "
    commands = {
        "good": [sys.executable, "-c", say],
        "bad": [sys.executable, "-c", say + "sys.exit('at the end')"],
    }
    assert proof["run"](commands, 2) == ["bad"]
    shown = capfdbinary.readouterr().out.decode()
    [seed] = set(re.findall(r"^(\d+) 1$", shown, re.MULTILINE))
    assert re.search(rf"^==> bad: FAILED with 1 after \d+ s\n{seed} 1\nat the end\n", shown, re.MULTILINE), shown
    assert re.search(rf"^==> good: passed after \d+ s\n{seed} 1\n", shown, re.MULTILINE), shown


@pytest.mark.subprocess
def test_script_returns_its_output():
    """A script gets its options, arguments and environment, and hands back what it wrote."""
    done = support.run_script(
        """
        import os, sys
        print(sys.argv[1], os.environ["GREETING"], sys.flags.dev_mode)
        print("to stderr", file=sys.stderr)
        """,
        options=["-X", "dev"],
        args=["one"],
        env={"GREETING": "hello"},
    )
    assert done.stdout == "one hello True\n"
    assert done.stderr == "to stderr\n"


@pytest.mark.subprocess
def test_script_with_unexpected_status_fails():
    """A wrong exit status fails the test and shows the output."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)ended with 3, not 0.*farewell"):
        support.run_script("print('farewell'); raise SystemExit(3)")
    assert support.run_script("raise SystemExit(3)", expect=3).returncode == 3


@pytest.mark.subprocess
def test_script_that_hangs_is_killed_and_shows_its_stacks():
    """A hanging script is killed with its children; the failure has its output and its threads' stacks."""
    started = time.monotonic()
    with pytest.raises(pytest.fail.Exception) as caught:
        support.run_script(
            """
            import subprocess, sys, threading
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            print("started", flush=True)
            def stuck_here():
                threading.Event().wait()
            stuck_here()
            """,
            timeout=2.0,
        )
    text = str(caught.value)
    assert "not done after 2.0 s" in text
    assert "started" in text
    assert "stuck_here" in text
    assert time.monotonic() - started < 20


@pytest.mark.subprocess
def test_script_imports_the_installed_package():
    """A script sees the package without any search path of the tests' own."""
    assert support.run_script("import threadsched; print(threadsched.__name__)").stdout == "threadsched\n"


def leak_session(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    """Run one small test file under the real conftest, with a short patience."""
    pytester.makeconftest(
        "import tests.conftest\n"
        "from tests.conftest import no_thread_left\n"
        "tests.conftest.LEAK_TIMEOUT = 0.2\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'leaves_threads(reason): see the real one')\n"
    )
    pytester.makepyfile(
        "import threading, pytest\n"
        "release = threading.Event()\n"
        "def start():\n"
        "    threading.Thread(target=release.wait, name='leaky', daemon=True).start()\n" + body
    )
    pytester.syspathinsert(support.ROOT)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider")


@pytest.mark.subprocess
def test_leaked_thread_fails_the_test(pytester: pytest.Pytester):
    """A thread that outlives its test is reported with its name, unless a marker gives a reason; one that ends is not.

    One session for all of it: the start of another pytest is what costs.
    """
    result = leak_session(
        pytester,
        "def test_leaks():\n    start()\n\n"
        "def test_ends():\n"
        "    threading.Thread(target=threading.Event().wait, args=(0.05,)).start()\n\n"
        "@pytest.mark.leaves_threads('left on purpose')\ndef test_told():\n    start()\n\n"
        "@pytest.mark.leaves_threads\ndef test_untold():\n    start()\n",
    )
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["*the test left 1 thread(s) alive*", "*leaky*"])
    result.stdout.fnmatch_lines(["*leaves_threads needs a reason*"])


def test_switch_interval_is_the_one_asked_for():
    """The switch interval is the one that the environment names, if it names one."""
    asked = os.environ.get("THREADSCHED_SWITCH_INTERVAL")
    assert sys.getswitchinterval() == pytest.approx(float(asked or 0.005))
