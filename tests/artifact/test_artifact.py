"""Compiling, loading and calling, with ONNX Runtime as the judge."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper

import slipstream
from slipstream.artifact import directory as artifact_directory
from slipstream.artifact.directory import replace_directory
from slipstream.artifact.manifest import Manifest
from slipstream.artifact.runtime import check_indices
from slipstream.errors import ArtifactError, InputError, VerificationError
from slipstream.frontends import random_inputs, zoo
from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.model import Model
from tests.conftest import embedding_model, small_model


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((1, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def small_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small_model`, compiled once. Do not change it: copy it."""
    directory = tmp_path_factory.mktemp("artifacts") / "small"
    slipstream.compile(small_model(), directory)
    return directory


def run_in_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_computes_what_onnxruntime_computes(tiny_artifact: Path, image: np.ndarray) -> None:
    (expected,) = run_in_onnxruntime(zoo.build("tiny_cnn"), {"input": image})
    (actual,) = slipstream.load(tiny_artifact)(image)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_inputs_by_position_keyword_and_mapping_outputs_by_name(tiny_artifact: Path, image: np.ndarray) -> None:
    model = slipstream.load(tiny_artifact)
    first = model(image)["logits"]
    np.testing.assert_array_equal(first, model(input=image)[0])
    np.testing.assert_array_equal(first, model({"input": image})["logits"])
    np.testing.assert_array_equal(first, model(np.asfortranarray(image))[0])


def test_outputs_can_be_copied_and_sent_to_other_processes(tiny_artifact: Path, image: np.ndarray) -> None:
    outputs = slipstream.load(tiny_artifact)(image)
    for same in (pickle.loads(pickle.dumps(outputs)), copy.copy(outputs), copy.deepcopy(outputs)):
        assert type(same) is type(outputs)
        np.testing.assert_array_equal(same["logits"], outputs[0])


def test_dlpack_in_dlpack_out(tiny_artifact: Path, image: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    model = slipstream.load(tiny_artifact)
    returned = torch.from_dlpack(model(torch.from_numpy(image))[0])
    np.testing.assert_array_equal(returned.numpy(), model(image)[0])


def test_a_tensor_of_pytorch_that_requires_its_gradient(tiny_artifact: Path, image: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    model = slipstream.load(tiny_artifact)
    returned = torch.from_dlpack(model(torch.from_numpy(image.copy()).requires_grad_())[0])
    np.testing.assert_array_equal(returned.numpy(), model(image)[0])


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_a_tensor_without_memory_that_can_be_read(tiny_artifact: Path, image: np.ndarray, kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(image)
    tensor = tensor.to("meta") if kind == "meta" else tensor.to_sparse()
    with pytest.raises(InputError, match=r"memory of input 'input' cannot .*: give a dense tensor") as refused:
        slipstream.load(tiny_artifact)(tensor)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([np.zeros((1, 3, 32, 31), np.float32)], {}), r"float32\[1x3x32x32\], not float32\[1x3x32x31\]"),
        (([np.zeros((1, 3, 32, 32), np.float64)], {}), r"has to be float32"),
        (([], {"inptu": np.zeros((1, 3, 32, 32), np.float32)}), r"no input 'inptu'.*input: float32\[1x3x32x32\]"),
        (([], {}), "missing input: input"),
        (([np.zeros(1), np.zeros(1)], {}), "2 inputs were given, the model takes 1"),
        (([[1, 2, 3]], {}), "is a list"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones_named(
    tiny_artifact: Path, arguments: tuple[list, dict], complaint: str
) -> None:
    model = slipstream.load(tiny_artifact)
    args, kwargs = arguments
    with pytest.raises(InputError, match=complaint):
        model(*args, **kwargs)


def test_threads_calling_at_once_get_their_own_answers(tiny_artifact: Path) -> None:
    model = slipstream.load(tiny_artifact)
    images = [np.random.default_rng(seed).standard_normal((1, 3, 32, 32)).astype(np.float32) for seed in range(8)]
    expected = [model(image)[0] for image in images]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(model(images[index])[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_manifest_says_what_was_compiled_and_how_well_it_was_verified(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    assert (manifest.model, manifest.source) == ("tiny_cnn", "zoo:tiny_cnn")
    assert manifest.verification is not None
    assert manifest.verification.reference == "onnxruntime"
    assert manifest.verification.seeds >= 3
    assert all(check.max_relative < check.tolerance for check in manifest.verification.outputs)
    assert set(manifest.versions) >= {"slipstream", "apache-tvm", "onnxruntime"}


def test_loading_needs_no_compiler_and_no_frontend(tiny_artifact: Path) -> None:
    """Run in a fresh process where importing ONNX, ONNX Runtime or our compiler is an error."""
    script = (
        "import sys, numpy as np\n"
        "for name in ('onnx', 'onnxruntime', 'slipstream.graph', 'slipstream.artifact.write'):\n"
        "    sys.modules[name] = None\n"
        "import slipstream\n"
        "print(slipstream.load(sys.argv[1])(np.zeros((1, 3, 32, 32), np.float32))[0].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_artifact)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(1, 10)", done.stderr


def test_integer_inputs_stay_in_the_range_of_their_table_and_outside_is_refused(tmp_path: Path) -> None:
    result = slipstream.compile(embedding_model(), tmp_path / "embedding")
    (spec,) = result.manifest.inputs
    assert spec.limit == 11
    drawn = np.concatenate([random_inputs((spec,), np.random.default_rng(s))["ids"].ravel() for s in range(50)])
    assert drawn.min() == 0
    assert drawn.max() == 10
    with pytest.raises(InputError, match="table of 11 rows"):
        slipstream.load(tmp_path / "embedding")(np.full((1, 5), 11))


@pytest.mark.parametrize("library", ["numpy", "torch", "tvm"])
def test_indices_are_checked_whatever_holds_them(library: str) -> None:
    """A tensor of TVM's is what one on a GPU becomes before it is used."""
    makers = {"numpy": np.asarray, "tvm": tvm.runtime.tensor}
    make = makers[library] if library in makers else pytest.importorskip("torch").from_numpy
    spec = TensorSpec("ids", (1, 3), "int64", 11)
    check_indices(spec, make(np.array([[-11, 0, 10]])))
    check_indices(replace(spec, limit=None), make(np.array([[99, 99, 99]])))
    for wrong in (11, -12):
        with pytest.raises(InputError, match="table of 11 rows"):
            check_indices(spec, make(np.array([[0, wrong, 0]])))


def test_a_wrong_result_fails_the_compile_and_keeps_the_previous_artifact(small_artifact: Path, tmp_path: Path) -> None:
    model = slipstream.load_model(small_model())
    shutil.copytree(small_artifact, tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").read_text()

    class OffByALittle:
        name = "onnxruntime"

        def outputs(self, feeds: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
            return [[value * 1.001 for value in values] for values in model.reference.outputs(feeds)]

    changed = Model(
        model.name, model.source, model.module, model.inputs, model.outputs, model.fingerprint, OffByALittle()
    )
    with pytest.raises(VerificationError, match=r"nothing was written[\s\S]*y .*0\.001"):
        slipstream.compile(changed, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_recompiling_replaces_the_artifact_as_a_whole(small_artifact: Path, tmp_path: Path) -> None:
    x = np.full((1, 3, 8, 8), 9.0, np.float32)
    shutil.copytree(small_artifact, tmp_path / "out")
    first = slipstream.load(tmp_path / "out")
    assert first(x)[0].max() > 1.0
    slipstream.compile(small_model(op="Sigmoid"), tmp_path / "out")
    assert slipstream.load(tmp_path / "out")(x)[0].max() <= 1.0
    assert first(x)[0].max() > 1.0, "a model in use is not pulled away from under its user"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_loading_while_artifacts_are_replaced_gives_one_of_them(
    small_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two have code of the same name with other weights. With and without a file system that swaps directories."""
    twice = small_model()
    twice.graph.initializer[0].raw_data = (2 * np.frombuffer(twice.graph.initializer[0].raw_data, np.float32)).tobytes()
    slipstream.compile(twice, tmp_path / "twice")
    x = np.full((1, 3, 8, 8), 9.0, np.float32)
    results = [slipstream.load(path)(x)[0] for path in (small_artifact, tmp_path / "twice")]
    out, until, replaced = tmp_path / "out", time.monotonic() + 4, []
    shutil.copytree(small_artifact, out)

    def replace() -> None:
        while time.monotonic() < until:
            if time.monotonic() > until - 2:
                monkeypatch.setattr(artifact_directory, "_exchange", cannot_exchange)
            source = (tmp_path / "twice", small_artifact)[len(replaced) % 2]
            with replace_directory(out) as staging:
                shutil.copytree(source, staging, dirs_exist_ok=True)
            replaced.append(source)
            time.sleep(0.03)

    thread = threading.Thread(target=replace)
    thread.start()
    loaded = 0
    try:
        while thread.is_alive():
            with slipstream.load(out) as model:
                result = model(x)[0]
            assert any(np.array_equal(result, each) for each in results)
            loaded += 1
    finally:
        thread.join()
    assert loaded > 20
    assert len(replaced) > 20


def cannot_exchange(one: Path, other: Path) -> None:
    raise OSError(errno.EINVAL, "not here")


def test_artifacts_with_an_earlier_thread_pool_run_beside_later_ones(
    small_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for module in ("runtime.link", "artifact.manifest"):
            earlier.setattr(f"slipstream.{module}.POOL", "libslipstream_pool.so.1")
        slipstream.compile(small_model(), tmp_path / "earlier")
    assert (tmp_path / "earlier" / "libslipstream_pool.so.1").exists()
    x = np.full((1, 3, 8, 8), 9.0, np.float32)
    with slipstream.load(tmp_path / "earlier") as earlier_model, slipstream.load(small_artifact) as model:
        np.testing.assert_array_equal(earlier_model(x)[0], model(x)[0])
    slipstream.export(tmp_path / "earlier", tmp_path / "bundle")
    assert (tmp_path / "bundle" / "libslipstream_pool.so.1").exists()


def test_a_killed_compile_leaves_the_previous_artifact_and_the_next_one_cleans_up(
    small_artifact: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_artifact, tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").read_text()
    script = (
        "import sys, os, signal\n"
        "from slipstream.artifact import directory\n"
        "from pathlib import Path\n"
        "with directory.replace_directory(Path(sys.argv[1])) as staging:\n"
        "    (staging / 'model.so').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "out" / "manifest.json").read_text() == before
    assert len(list(tmp_path.iterdir())) == 2
    slipstream.compile(small_model(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _processes(script: str, *arguments: object, namespaces: str = "") -> subprocess.CompletedProcess[str]:
    """Python code in a process with new namespaces (options of unshare), skipped where these are not allowed."""
    if namespaces and subprocess.run(["unshare", namespaces, "true"], capture_output=True, check=False).returncode:
        pytest.skip("new namespaces are not allowed here")
    prefix = ["unshare", namespaces, "--"] if namespaces else []
    command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


REPLACE = (
    "import sys, os\n"
    "from slipstream.artifact.directory import replace_directory\n"
    "from pathlib import Path\n"
    "def replace(name, text, end=lambda: None):\n"
    "    with replace_directory(Path(name)) as staging:\n"
    "        (staging / 'manifest.json').write_text(text)\n"
    "        end()\n"
    "def kill(): os._exit(9)  # the first process of a container cannot send itself the signal\n"
)


def test_a_kill_in_a_container_does_not_keep_later_ones_with_the_same_process_number_from_compiling(
    tmp_path: Path,
) -> None:
    """Each has number 1, as the first process of a container has."""
    out = tmp_path / "out"
    for _ in range(2):
        done = _processes(REPLACE + "replace(sys.argv[1], 'half', kill)", out, namespaces="-Urpf")
        assert done.returncode == 9, done.stderr
    done = _processes(REPLACE + "replace(sys.argv[1], str(os.getpid()))", out, namespaces="-Urpf")
    assert done.returncode == 0, done.stderr
    assert (out / "manifest.json").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_compile_under_way_is_not_tidied_away_by_another(tmp_path: Path) -> None:
    out = tmp_path / "out [1]"
    with replace_directory(out) as first:
        (first / "manifest.json").write_text("first")
        with replace_directory(out) as second:
            (second / "manifest.json").write_text("second")
        assert (out / "manifest.json").read_text() == "second"
        assert first.is_dir()
    assert (out / "manifest.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out [1]"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(small_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    shutil.copytree(small_artifact, tmp_path / "disk" / "out")
    (tmp_path / "disk" / "out" / "old").touch()
    (tmp_path / "link").symlink_to("disk/out")
    slipstream.compile(small_model(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "disk" / "out" / "old").exists()
    assert (tmp_path / "disk" / "out" / "manifest.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["out"]


@pytest.mark.parametrize("options", ["--bind OTHER", "-t tmpfs none"])
def test_a_mount_point_is_refused_before_any_work(options: str, tmp_path: Path) -> None:
    """A bind mount of the same file system has the same device as its parent."""
    (tmp_path / "with space").mkdir()
    (tmp_path / "other").mkdir()
    script = REPLACE + (
        "import subprocess, slipstream\n"
        "out = sys.argv[1]\n"
        "subprocess.run(['mount', *sys.argv[2:], out], check=True)\n"
        "from slipstream.errors import ArtifactError\n"
        "try: slipstream.compile('zoo:no such model', out)\n"
        "except ArtifactError as error: print(error)\n"
        "replace(out + '/model', 'below it')\n"
        "print((Path(out) / 'model' / 'manifest.json').read_text())\n"
    )
    given = options.replace("OTHER", str(tmp_path / "other")).split(" ")
    done = _processes(script, tmp_path / "with space", *given, namespaces="-Urm")
    refused, _, rest = done.stdout.partition("\n")
    assert "is a mount point" in refused, done.stderr
    assert f"such as {tmp_path / 'with space' / 'model'}" in refused
    assert rest == "below it\n"


NOEXEC = (
    "import os, subprocess, sys\n"
    "import slipstream\n"
    "from slipstream.errors import SlipstreamError\n"
    "from slipstream.tvm_bridge.imports import import_tvm_without_torch\n"
    "import_tvm_without_torch()\n"
    "subprocess.run(['mount', '-t', 'tmpfs', '-o', 'noexec', 'none', sys.argv[1]], check=True)\n"
    "def say(action):\n"
    "    try: action()\n"
    "    except SlipstreamError as error: print(error)\n"
)


def test_a_file_system_mounted_noexec_is_named_with_the_remedy(tiny_artifact: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    script = NOEXEC + (
        "top = sys.argv[1]\n"
        "say(lambda: slipstream.compile('zoo:no such model', top + '/out'))\n"
        "say(lambda: slipstream.tune('zoo:tiny_cnn', top + '/session', trials=1))\n"
        "subprocess.run(['cp', '-r', sys.argv[2], top + '/copy'], check=True)\n"
        "say(lambda: slipstream.load(top + '/copy'))\n"
        "os.environ['XDG_CACHE_HOME'] = top + '/cache'\n"
        "say(lambda: slipstream.tune('zoo:tiny_cnn', sys.argv[3], trials=1))\n"
        "print(sorted(os.listdir(top)))\n"
        "from slipstream.machine.target import resolve_target\n"
        "from slipstream.measure.roles import PREPARE, options_for\n"
        "from slipstream.processes.fork_server import ForkServer\n"
        "subprocess.run(['mount', '-t', 'tmpfs', '-o', 'noexec', 'none', '/dev/shm'], check=True)\n"
        "server = ForkServer(PREPARE, options_for(resolve_target()), 1 << 30)\n"
        "print(server.scratch)\n"
        "server.close()\n"
    )
    done = _processes(script, mounted, tiny_artifact, tmp_path / "session", namespaces="-Urm")
    compiled, tuned, loaded, cached, left, scratch, *_ = [*done.stdout.splitlines(), *[""] * 6]
    noexec = "is on a file system that is mounted noexec, from which no"
    assert f"{mounted}/out {noexec} compiled code can be loaded: choose another -o" in compiled, done.stderr
    assert f"{mounted}/session {noexec} compiled code can be loaded: choose another -o" in tuned, done.stderr
    assert f"{mounted}/copy {noexec} code can be loaded: copy it to another one" in loaded
    assert f"{mounted}/cache/slipstream/" in cached
    assert f"{noexec} code can be loaded: set XDG_CACHE_HOME" in cached
    assert left == "['cache', 'copy']"
    assert scratch, done.stderr
    assert not scratch.startswith("/dev/shm")


@pytest.mark.parametrize("end", ["", ", fail"])
def test_an_artifact_in_a_lower_layer_is_replaced_or_stays(end: str, tmp_path: Path) -> None:
    """As one of a container's image: such a directory cannot be moved."""
    for name in ("lower/out", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower" / "out" / "manifest.json").write_text("old")
    (tmp_path / "lower" / "out" / "weights.bin").write_text("old")
    script = REPLACE + (
        "import subprocess\n"
        "top = Path(sys.argv[1])\n"
        "def fail():\n"
        "    (staging,) = (top / 'merged').glob('.out.partial-*')\n"
        "    (staging / 'manifest.json').unlink()\n"
        "    staging.rmdir()\n"
        "layers = f'lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work,userxattr'\n"
        "if subprocess.run(['mount', '-t', 'overlay', 'overlay', '-o', layers, top / 'merged']).returncode:\n"
        "    sys.exit('no overlay')\n"
        f"try: replace(top / 'merged' / 'out', 'new'{end})\n"
        "except Exception as error: print(error, file=sys.stderr)\n"
        "print(sorted((p.name, p.read_text()) for p in (top / 'merged' / 'out').iterdir()), os.listdir(top/'merged'))\n"
    )
    done = _processes(script, tmp_path, namespaces="-Urm")
    if "no overlay" in done.stderr:
        pytest.skip("overlays cannot be mounted here")
    old = "[('manifest.json', 'old'), ('weights.bin', 'old')] ['out']\n"
    assert done.stdout == (old if end else "[('manifest.json', 'new')] ['out']\n"), done.stderr


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_where_directories_cannot_be_swapped_a_failure_leaves_the_previous_one(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIMULATES such a file system; the failure is real: what was to take the place has vanished."""

    def cannot(one: Path, other: Path) -> None:
        raise OSError(code, "not here")

    monkeypatch.setattr(artifact_directory, "_exchange", cannot)
    out = tmp_path / "out"
    for text in ("old", "new"):
        with replace_directory(out) as staging:
            (staging / "manifest.json").write_text(text)
        assert (out / "manifest.json").read_text() == text
    with pytest.raises(ArtifactError, match="cannot write"), replace_directory(out) as staging:
        staging.rmdir()
    assert (out / "manifest.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("moved", ["whole", "in part"])
def test_what_a_kill_left_aside_is_put_back(moved: str, tmp_path: Path) -> None:
    out, aside = tmp_path / "out", tmp_path / ".out.previous-0123"
    aside.mkdir()
    (aside / "manifest.json").write_text("old")
    (tmp_path / ".out.partial-0123").mkdir()
    (out if moved == "in part" else aside).mkdir(exist_ok=True)
    ((out if moved == "in part" else aside) / "weights.bin").write_text("old")
    with pytest.raises(ZeroDivisionError), replace_directory(out):
        raise ZeroDivisionError
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "weights.bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["model-*.so", "weights.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_damage_is_noticed_before_anything_runs(tiny_artifact: Path, tmp_path: Path, name: str, damage: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_artifact, broken)
    (file,) = broken.glob(name)
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(b"#" + content[1:])
    with pytest.raises(ArtifactError, match=r"damaged|not a compiled model"):
        slipstream.load(broken)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architecture": "sparc64"}, "compiled for sparc64"),
        ({"features": ["avx10.9"]}, "this CPU lacks avx10.9"),
        ({"format": 99}, "format 99"),
        ({"threads": 1.5}, "1.5 is no number of threads"),
        ({"features": [None]}, "are no features of a CPU"),
        ({"outputs": [{"name": "y", "shape": "ab", "dtype": "float32", "limit": None}]}, "is no tensor"),
    ],
)
def test_an_artifact_that_cannot_be_of_this_machine_is_refused(
    tiny_artifact: Path, tmp_path: Path, change: dict, complaint: str
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(tiny_artifact, foreign)
    manifest = json.loads((foreign / "manifest.json").read_text())
    (foreign / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(ArtifactError, match=complaint):
        slipstream.load(foreign)


@pytest.mark.parametrize("library", ["/usr/lib/libm.so", "../broken/model.so", "..", "", "sub/model.so", None])
def test_a_library_outside_of_the_artifact_is_refused(tiny_artifact: Path, tmp_path: Path, library: str | None) -> None:
    """Even one whose checksum is right; a manifest without checksums is refused as well."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_artifact, broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    shutil.copy(broken / manifest["library"], broken / "model.so")
    sums = {} if library is None else {library: manifest["checksums"][manifest["library"]]}
    changed = {"library": manifest["library"] if library is None else library, "checksums": sums}
    (broken / "manifest.json").write_text(json.dumps({**manifest, **changed}))
    with pytest.raises(ArtifactError, match=r"manifest.json is damaged .*(not a file of|checksums)"):
        slipstream.load(broken)


def test_a_prefix_that_is_no_name_is_refused(tiny_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_artifact, tmp_path / "broken")
    manifest = json.loads((tmp_path / "broken" / "manifest.json").read_text())
    (tmp_path / "broken" / "manifest.json").write_text(json.dumps({**manifest, "prefix": "../up"}))
    with pytest.raises(ArtifactError, match=r"prefix '\.\./up' is no name of C"):
        slipstream.export(tmp_path / "broken", tmp_path / "out")


def test_compiling_for_an_older_cpu_uses_none_of_the_newer_instructions(tmp_path: Path) -> None:
    baseline = {"x86_64": "cpu:x86-64", "aarch64": "cpu:generic"}[os.uname().machine]
    result = slipstream.compile(small_model(), tmp_path / "old", target=baseline)
    assert "avx512f" not in result.manifest.features
    assert slipstream.load(tmp_path / "old")(np.zeros((1, 3, 8, 8), np.float32))[0].shape == (1, 4, 8, 8)


def test_fingerprint_is_of_the_content_not_of_where_the_weights_are(tmp_path: Path) -> None:
    proto = small_model()
    onnx.save(proto, tmp_path / "inside.onnx")
    onnx.save(proto, tmp_path / "outside.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    inside, outside = (slipstream.load_model(tmp_path / f"{name}.onnx") for name in ("inside", "outside"))
    assert (tmp_path / "weights.data").exists()
    assert inside.fingerprint == outside.fingerprint == slipstream.load_model(small_model()).fingerprint
    assert inside.fingerprint != slipstream.load_model(small_model(op="Sigmoid")).fingerprint


def test_no_process_and_no_temporary_file_outlives_the_user(tmp_path: Path) -> None:
    script = (
        "from slipstream.tvm_bridge.imports import import_tvm_without_torch\n"
        "import_tvm_without_torch()\n"
        "import slipstream, subprocess, sys, os\n"
        "from slipstream.frontends import sandbox\n"
        "slipstream.compile(sys.argv[2], sys.argv[1])\n"
        "print(sandbox._worker._process.pid)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    onnx.save(small_model(batch=1), tmp_path / "small.onnx")
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out"), str(tmp_path / "small.onnx")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        check=True,
    )
    deadline = time.monotonic() + 5
    while Path(f"/proc/{done.stdout.strip()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{done.stdout.strip()}").exists()
    assert list(scratch.iterdir()) == []


def test_scalars_and_mixed_precision(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["scaled"]),
            helper.make_node("Exp", ["scaled"], ["e"]),
            helper.make_node("Cast", ["e"], ["y"], to=TensorProto.DOUBLE),
            helper.make_node("ReduceSum", ["scaled"], ["total"], keepdims=0),
        ],
        "scalars",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("factor", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 3]),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    slipstream.compile(proto, tmp_path / "out")
    x, factor = np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray(0.5, np.float32)
    returned = slipstream.load(tmp_path / "out")(x, factor)
    np.testing.assert_allclose(returned["y"], np.exp(x * factor), rtol=1e-5)
    assert returned["total"] == 7.5
